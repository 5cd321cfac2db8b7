// The unmodified npm `openai` client against the service at argv[3]; argv[2] is the package's folder. Prints JSON.

const { default: OpenAI } = require(process.argv[2]);

const client = new OpenAI({ baseURL: `${process.argv[3]}/v1`, apiKey: process.argv[4], maxRetries: 0 });
const ask = (content, more = {}) =>
  client.chat.completions.create({ model: "shoal", messages: [{ role: "user", content }], ...more });

async function streamed() {
  const found = { text: "", depths: [], roles: 0 };
  const stream = await ask("why is the sky blue", { stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    found.text += chunk.choices[0]?.delta.content ?? "";
    found.roles += chunk.choices[0]?.delta.role === "assistant" ? 1 : 0;
    found.finish = chunk.choices[0]?.finish_reason ?? found.finish;
    found.usage = chunk.usage ?? found.usage;
    found.depths.push(chunk.shoal.depth.max);
    found.route = chunk.shoal.route ?? found.route;
  }
  return found;
}

async function left() {
  const stream = await ask("slow 2000", { stream: true });
  for await (const _ of stream) break; // aborts the request
}

async function failed(work) {
  try {
    const made = await work();
    if (made?.[Symbol.asyncIterator]) for await (const _ of made);
  } catch (error) {
    return { kind: error.constructor.name, status: error.status ?? null, code: error.code, param: error.param };
  }
  return null;
}

async function main() {
  const whole = await ask("one two", { max_depth: "60%", cache: false, made_up: 1 }).withResponse();
  const other = new OpenAI({ baseURL: client.baseURL, apiKey: "wrong", maxRetries: 0 });
  const found = {
    whole: { text: whole.data.choices[0].message.content, depth: whole.response.headers.get("x-compute-depth") },
    stream: await streamed(),
    models: (await client.models.list()).data.map((model) => model.id),
    embedding: (await client.embeddings.create({ model: "shoal-embed", input: "a" })).data[0].embedding,
    errors: {
      key: await failed(() => other.models.list()),
      model: await failed(() => client.chat.completions.create({ model: "gpt-9", messages: [{ role: "user", content: "a" }] })),
      type: await failed(() => ask("a", { temperature: "hot" })),
      tools: await failed(() => ask("a", { tools: [{ type: "function", function: { name: "f" } }] })),
      guard: await failed(() => ask("refuse")),
      crash: await failed(() => ask("crash")),
      forbidden: await failed(() => client.post("/kb/documents", { body: { documents: [{ id: "a", text: "b" }] } })),
      broken: await failed(() => ask("break a b c", { stream: true })),
    },
  };
  await left();
  console.log(JSON.stringify(found));
}

main();
