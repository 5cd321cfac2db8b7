// What the server says of a decision, in the language chosen: its reasons are English and come as whole sentences.

import { language } from "./strings.js";

const BUCKETS = { shallow: "浅", middle: "中", deep: "深" };
const REASONS = [
  [/^looks like (\w+) \(([\d.]+)\), not sure: taken as (\w+)$/, (m) => `像是 ${m[1]}（${m[2]}），不确定，按 ${m[3]} 处理`],
  [/^looks like (\w+) \(([\d.]+)\)$/, (m) => `像是 ${m[1]}（${m[2]}）`],
  [/^needs the (\w+) bucket$/, (m) => `需要${BUCKETS[m[1]]}档`],
  [/^asks for little thinking$/, () => "要求少思考"],
  [/^fixed answer form: one bucket shallower$/, () => "回答形式固定：浅一档"],
  [/^guiding words: deeper$/, () => "有引导词：更深"],
  [/^profile (\S+): ([\d.]+) layers$/, (m) => `模式 ${m[1]}：${m[2]} 层`],
  [/^depth hint: ([\d.]+) layers$/, (m) => `深度提示：${m[1]} 层`],
  [/^auto: ([\d.]+) of (\d+) layers keep this model's quality$/, (m) => `自动：${m[1]} / ${m[2]} 层可保持此模型的质量`],
  [/^max_depth: at most ([\d.]+) layers$/, (m) => `max_depth：最多 ${m[1]} 层`],
  [/^guarded topic: raised to ([\d.]+) layers$/, (m) => `受保护的话题：提高到 ${m[1]} 层`],
  [/^model's range: ([\d.]+) layers$/, (m) => `模型的范围：${m[1]} 层`],
];

/** A reason of a decision; one that is not known stays as it is. */
export function said(reason) {
  if (language !== "zh") return reason;
  for (const [form, words] of REASONS) {
    const found = form.exec(reason);
    if (found) return words(found);
  }
  return reason;
}
