// Every word the console says, in English and Chinese: the one table. `{name}` is filled in.

const STRINGS = {
  pages: ["Pages", "页面"],
  ask: ["Ask", "提问"],
  live: ["Live", "实时"],
  knowledge: ["Knowledge", "知识库"],
  key: ["API key", "API 密钥"],
  key_title: ["This server asks for an API key", "此服务器需要 API 密钥"],
  key_note: [
    "It stays in this tab and is sent to this server only. An empty field forgets it.",
    "密钥只保存在本标签页，只发送给此服务器。留空即忘记密钥。",
  ],
  key_use: ["Use it", "使用"],
  key_wrong: ["The server does not know this key.", "服务器不认识这个密钥。"],
  busy: ["Working …", "处理中……"],

  ask_title: ["Ask, and see how deep the answer is", "提问，并看看回答用了多深"],
  ask_empty: [
    "Each token of an answer is coloured by the layers it took. Ask something easy, then something hard.",
    "回答中的每个词元按所用的层数着色。先问一个简单的，再问一个难的。",
  ],
  example_1: ["Say hello in French.", "用法语问好。"],
  example_2: ["Write two sentences about the sea.", "写两句关于大海的话。"],
  example_3: ["Explain step by step why the sea is salty.", "一步一步解释海水为什么是咸的。"],
  conversation: ["Conversation", "对话"],
  new: ["New conversation", "新对话"],
  question: ["Your question", "你的问题"],
  question_hint: ["Ask something; Enter sends it", "输入问题，回车发送"],
  send: ["Ask", "提问"],
  stop: ["Stop", "停止"],
  budget: ["Budget", "预算"],
  auto: ["let the router choose", "由路由器决定"],
  layers_of: ["{layers} of {total} layers", "{layers} / {total} 层"],
  budget_auto: ["auto", "自动"],
  profile: ["Profile", "模式"],
  profile_balanced: ["balanced", "balanced（均衡）"],
  profile_command: ["command (strict)", "command（严格）"],
  profile_chat: ["chat (open)", "chat（开放）"],
  use_cache: ["use the cache", "使用缓存"],
  you: ["You", "你"],
  answer: ["Answer", "回答"],
  answering: ["Answering …", "正在回答……"],
  stopped: ["stopped", "已停止"],
  length: ["Cut at the limit of {n} tokens.", "达到 {n} 个词元的上限，在此截断。"],
  empty_answer: ["The model answered with nothing.", "模型没有给出任何文字。"],
  good: ["Good answer", "回答得好"],
  bad: ["Bad answer", "回答不好"],
  thanked: ["Thank you: noted.", "谢谢，已记录。"],
  retracted: [
    "Noted: the answer is out of the cache and will be made anew.",
    "已记录：该回答已从缓存中撤回，下次会重新生成。",
  ],
  forgotten: ["The server no longer knows this answer.", "服务器已不再保留这个回答。"],
  route: ["route", "路线"],
  tier: ["cache", "缓存"],
  miss: ["miss", "未命中"],
  depth: ["depth", "深度"],
  time: ["time", "时间"],
  cost_short: ["cost", "花费"],
  layer_tokens: ["{n} layer-tokens", "{n} 层·词元"],
  why: ["Why this route and depth", "为什么走这条路线、用这个深度"],
  decided: ["Decided: {route}, budget {budget} of {total} layers, bucket {bucket}, profile {profile}, confidence {confidence}",
    "决定：{route}，预算 {budget} / {total} 层，档位 {bucket}，模式 {profile}，置信度 {confidence}"],
  steps: ["Steps", "步骤"],
  step: ["Step", "步骤"],
  found: ["Found", "结果"],
  no_reason: ["no reason given", "未给出原因"],
  shallow_to_deep: ["shallow to deep", "由浅到深"],
  layers: ["layers", "层数"],
  yes: ["yes", "是"],
  no: ["no", "否"],

  map: ["Every token, layer by layer", "逐词元、逐层"],
  map_note: [
    "One row per token, one column per layer; the upper half of a cell is attention, the lower half the MLP.",
    "每行一个词元，每列一层；格子上半是注意力，下半是 MLP。",
  ],
  map_point: ["Point at a cell, tap it, or move with the arrow keys: its reason is told here.", "指向或点按一个格子，或用方向键移动，原因显示在这里。"],
  map_label: ["Layers run for each token", "每个词元运行的层"],
  map_none: ["No layer ran: the answer needed no model.", "没有运行任何层：这个回答不需要模型。"],
  map_missing: ["This server keeps no trace of this answer's tokens.", "此服务器没有保留这个回答的词元记录。"],
  map_more: ["The first {shown} of {all} tokens.", "前 {shown} 个词元，共 {all} 个。"],
  ran: ["ran", "运行"],
  attention_only: ["attention only", "仅注意力"],
  mlp_only: ["MLP only", "仅 MLP"],
  skipped: ["skipped", "跳过"],
  safety: ["safety, always runs", "安全层，必定运行"],
  cell: ["token {token}, layer {layer}", "词元 {token}，第 {layer} 层"],
  attention: ["attention", "注意力"],
  mlp: ["MLP", "MLP"],
  both: ["both branches", "两个分支"],
  because: ["{branch} {state}: {reason}", "{branch}{state}：{reason}"],
  ran_f: ["every layer runs at this budget", "在此预算下每层都运行"],
  ran_s: ["one of the last layers, which always run", "属于最后几层，必定运行"],
  ran_w: ["the first tokens run as whole as the budget allows", "最初的词元在预算内尽量完整运行"],
  ran_p: ["the plan keeps it at this budget", "方案在此预算下保留它"],
  ran_b: ["the budget left room for it", "预算还有余地"],
  ran_r: ["drawn at random to run", "随机抽中运行"],
  ran_g: ["its gate is open", "门控打开"],
  off_p: ["the plan leaves it out at this budget", "方案在此预算下略去它"],
  off_p_at: [
    "the plan leaves it out from depth {depth} down (measured loss there {loss} nats per token)",
    "方案从深度 {depth} 起略去它（当时测得的损失为每词元 {loss} nats）",
  ],
  off_b: ["running it would have gone over the budget", "运行它会超出预算"],
  off_r: ["drawn at random to be skipped", "随机抽中跳过"],
  off_g: ["its gate is closed", "门控关闭"],
  by_signal: ["the signals say so", "由信号决定"],
  entropy: ["entropy", "熵"],
  attention_kl: ["attention KL", "注意力 KL"],
  residual: ["residual change", "残差变化"],
  confidence: ["confidence", "置信度"],
  at_layer: [" at layer {layer}", "（第 {layer} 层）"],
  token_before: [" of the token before", "（前一个词元）"],
  below: ["below", "低于"],
  above: ["above", "高于"],
  at: ["at", "等于"],

  passages: ["Passages", "段落"],
  passages_n: ["Passages: {kept} kept, {dropped} dropped", "段落：保留 {kept}，丢弃 {dropped}"],
  kept: ["kept", "保留"],
  dropped: ["dropped: {reason}", "丢弃：{reason}"],
  drop_score: ["fits the question too little", "与问题不够相关"],
  drop_depth: ["too hard to read", "太难读"],
  drop_duplicate: ["says the same as another", "与另一段重复"],
  drop_budget: ["no room left", "放不下"],
  passages_note: [
    "Score: how well it fits the question, 0 to 1. Depth score: 1 where the model skims, 0 where it has to dig.",
    "相关分：与问题的相关程度，0 到 1。深度分：模型一读就懂为 1，需要深究为 0。",
  ],
  score: ["score {score}", "相关分 {score}"],
  depth_score: ["depth score {score}", "深度分 {score}"],
  characters: ["characters {from} to {to}", "第 {from} 到 {to} 字"],
  fused: ["What the model read, fused and cited", "模型读到的融合文本及出处"],

  live_title: ["Live", "实时"],
  fresh: ["as of {time}", "截至 {time}"],
  pause: ["Pause", "暂停"],
  resume: ["Go on", "继续"],
  tile_answers: ["answers", "回答"],
  tile_depth: ["mean layers of {total}", "平均层数（共 {total}）"],
  tile_hits: ["from the cache", "来自缓存"],
  tile_free: ["needed no model", "无需模型"],
  tile_queue: ["working / waiting", "处理中 / 等待"],
  tile_mode: ["depth_mode", "深度模式 depth_mode"],
  tile_state: ["experience state", "体验状态"],
  tile_skipped: ["branches skipped", "跳过的分支"],
  normal: ["normal", "正常"],
  low_power: ["low power", "低功耗"],
  thinking_fast: ["thinking fast", "快速思考"],
  analysing_deeply: ["analysing deeply", "深入分析"],
  steady: ["steady", "平稳"],
  by_route: ["Answers by route", "按路线统计"],
  by_tier: ["Answers by cache tier", "按缓存层级统计"],
  tier_l1: ["L1, memory", "L1 内存"],
  tier_l2: ["L2, Redis", "L2 Redis"],
  tier_semantic: ["same meaning", "语义相同"],
  tier_flight: ["joined another", "并入另一请求"],
  tier_miss: ["no hit", "未命中"],
  by_depth: ["Depth of answers, in layers", "回答的深度（层）"],
  by_layer: ["Skip rate per layer", "每层跳过率"],
  by_layer_note: ["Of the tokens written; attention and MLP are half a layer each. Requests counted: {requests}.", "按写出的词元计，注意力和 MLP 各算半层。统计的请求数：{requests}。"],
  layer_skipped: ["layer {layer}: attention skipped for {attention}%, MLP for {mlp}% of the tokens", "第 {layer} 层：{attention}% 的词元跳过注意力，{mlp}% 跳过 MLP"],
  requests: ["requests", "请求数"],
  none_yet: ["Nothing yet: ask something first.", "还没有数据：先问点什么。"],
  cost: ["Cost against plain token pricing", "与普通词元计价对比"],
  cost_note: [
    "Layer-tokens of the last 30 days. Prices are per thousand, in any currency; they stay in this browser. Answers that needed no model count no tokens on either side.",
    "最近 30 天的层·词元。价格按每千计，货币不限，只保存在此浏览器。不需要模型的回答在两种计价下都不计词元。",
  ],
  avoided: [
    "{n} answers needed no model. At the mean of the others they would have cost {plain} by plain pricing.",
    "{n} 个回答不需要模型。若按其余回答的平均计算，普通计价要再花 {plain}。",
  ],
  price_layer: ["per 1000 layer-tokens", "每千层·词元"],
  price_prompt: ["plain, per 1000 tokens read", "普通：每千读入词元"],
  price_completion: ["plain, per 1000 tokens written", "普通：每千写出词元"],
  col_route: ["Route", "路线"],
  col_requests: ["Requests", "请求"],
  col_tokens: ["Tokens", "词元"],
  col_layer_tokens: ["Layer-tokens", "层·词元"],
  col_full: ["At full depth", "若用全深度"],
  col_saved: ["Saved", "节省"],
  col_by_depth: ["By depth", "按深度计价"],
  col_plain: ["Plain", "普通计价"],
  all: ["all", "合计"],
  none: ["no answer", "未回答"],
  no_ledger: ["This server keeps no ledger.", "此服务器没有账本。"],
  quota: ["{left} of {granted} prepaid layer-tokens are left.", "预付的 {granted} 层·词元还剩 {left}。"],

  kb_title: ["Knowledge base", "知识库"],
  kb_none: ["This server has no knowledge base.", "此服务器没有知识库。"],
  kb_size: ["{documents} documents, {chunks} chunks", "{documents} 个文档，{chunks} 个片段"],
  kb_query: ["Find passages for a question", "为一个问题查找段落"],
  kb_search: ["Search", "查找"],
  kb_nothing: ["No passage was found.", "没有找到段落。"],
  kb_documents: ["Documents", "文档"],
  kb_filter: ["Filter by name", "按名称筛选"],
  kb_more: ["… and {n} more: filter by name", "……还有 {n} 个：请按名称筛选"],
  kb_delete: ["Delete", "删除"],
  kb_delete_named: ["Delete {name}", "删除 {name}"],
  kb_sure: ["Delete {name} from the knowledge base?", "要从知识库删除 {name} 吗？"],
  kb_deleted: ["{name} is deleted.", "{name} 已删除。"],
  kb_add: ["Add or replace documents", "添加或替换文档"],
  kb_add_note: [
    "Text files, or text typed here; a document of the same name is replaced. Other formats: shoal kb add.",
    "上传文本文件，或在此输入文字；同名文档会被替换。其他格式请用 shoal kb add。",
  ],
  kb_files: ["Files", "文件"],
  kb_id: ["Name", "名称"],
  kb_text: ["Text", "文字"],
  kb_put: ["Add", "添加"],
  kb_added: ["{documents} documents added, {chunks} chunks.", "已添加 {documents} 个文档，{chunks} 个片段。"],
  kb_need: ["Choose files, or give a name and a text.", "请选择文件，或填写名称和文字。"],

  audit: ["Audit", "审计"],
  audit_none: [
    "No audit yet. On the server: shoal kb audit splits what is hard to read and sets aside what stays hard.",
    "尚未审计。在服务器上运行 shoal kb audit，可拆分难读的内容，并隔离仍然难读的部分。",
  ],
  audit_note: [
    "{made}. Documents below depth score {limit} were split; what stayed below is set aside and in no search.",
    "{made}。深度分低于 {limit} 的文档已拆分；仍低于界限的部分已隔离，不参与检索。",
  ],
  audit_dry: [
    "{made}, dry run: nothing was changed. Documents below depth score {limit} would be split.",
    "{made}，试运行，未做更改。深度分低于 {limit} 的文档将被拆分。",
  ],
  audit_undone: [
    "{made}. At depth score {limit} more answers were lost than allowed, so everything was put back.",
    "{made}。以深度分 {limit} 为界，丢失的答案超过允许的比例，因此已全部恢复。",
  ],
  audit_documents: ["documents", "文档"],
  audit_hard: ["hard, split", "难读，已拆分"],
  audit_unscored: ["not scored, left as they are", "未评分，保持原样"],
  audit_size: ["characters searched", "参与检索的字符"],
  audit_aside: ["passages set aside", "隔离的段落"],
  audit_recall: ["answer in the first {k}", "前 {k} 段含答案"],
  audit_before: ["Depth scores before, 0 to 1", "审计前的深度分，0 到 1"],
  audit_after: ["Depth scores after, 0 to 1", "审计后的深度分，0 到 1"],
  audit_source: ["By source", "按来源"],
  audit_scenario: ["By scenario", "按场景"],
  audit_mean: ["mean score", "平均分"],
  audit_units: ["hard units", "难读单元"],
  audit_hardest: ["Hardest documents", "最难读的文档"],
  audit_all_easy: ["None is below the limit.", "没有低于界限的文档。"],
  audit_document: ["Document", "文档"],
  audit_score: ["Depth score", "深度分"],
  audit_begins: ["Begins", "开头"],
  audit_quarantine: ["Quarantine: {n} passages", "隔离区：{n} 个段落"],
  audit_restore: [
    "Never deleted. On the server: shoal kb restore ID brings one passage or document back, shoal kb restore --all everything.",
    "从不删除。在服务器上：shoal kb restore 编号 恢复一个段落或文档，shoal kb restore --all 全部恢复。",
  ],
  audit_text: ["Text", "文字"],

  key_missing: ["Without a key the server answers nothing here: “API key” asks for it again.", "没有密钥，服务器不会回答：点“API 密钥”可重新输入。"],
  unreachable: ["The server cannot be reached.", "无法连接服务器。"],
  cut: ["The answer was cut off.", "回答中断了。"],
  unreadable: ["The server answered something unexpected.", "服务器的答复无法识别。"],
};

const LANGUAGE = "shoal-language";
const LANGUAGES = ["en", "zh"];

export let language = LANGUAGES.includes(localStorage.getItem(LANGUAGE))
  ? localStorage.getItem(LANGUAGE)
  : navigator.language.startsWith("zh") ? "zh" : "en";

export function setLanguage(chosen) {
  language = chosen;
  localStorage.setItem(LANGUAGE, chosen);
}

/** Every pair of words, for whoever checks them. */
export const words = () => Object.values(STRINGS);

export const known = (name) => Object.hasOwn(STRINGS, name);

/** The words of that name in the language chosen, with `{name}` filled in. */
export function t(name, values = {}) {
  const text = STRINGS[name][LANGUAGES.indexOf(language)];
  return text.replace(/\{(\w+)\}/g, (_, value) => String(values[value]));
}

/** The word for a value of the server's where there is one, else the value itself. */
export const word = (value) => (known(value) ? t(value) : String(value));

/** A number in short: at most `digits` after the point, thousands apart. */
export const number = (value, digits = 1) => Number(value).toLocaleString(language, { maximumFractionDigits: digits });

/** Puts the words into the page: `data-t` text, `data-hint` placeholder, `data-label` accessible name. */
export function translate() {
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of document.querySelectorAll("[data-hint]")) node.placeholder = t(node.dataset.hint);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
}

/** What to tell of an error: the server's own words, else ours for its code. */
export function explain(error) {
  if (error.message && error.code !== undefined) return `${error.message} (${error.code})`;
  return word(known(error.code) ? error.code : "unreadable");
}
