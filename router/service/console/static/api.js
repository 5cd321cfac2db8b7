// Calls to the service, with the key where there is one. The key stays in this tab's session storage.

const KEY = "shoal-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** A refusal: what the service said, its code and status. */
export class Refusal extends Error {
  constructor(message, code, status) {
    super(message);
    Object.assign(this, { code, status });
  }
}

/** The response to `path`, relative to where the page came from. Throws `Refusal` for every status but 2xx. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? body : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("", "unreachable", 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const json = async (path, options) => (await call(path, options)).json();

/** The events of a streamed answer, as JSON, until `[DONE]`. Throws `Refusal` when the stream fails or is cut. */
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal("", "cut", 0);
    }
    if (part.done) throw new Refusal("", "cut", 0);
    const frames = (rest + decoder.decode(part.value, { stream: true })).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(event.error.message, event.error.code, 200);
      yield event;
    }
  }
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    return new Refusal(error.message, error.code, response.status);
  } catch {
    return new Refusal("", "unreadable", response.status);
  }
}
