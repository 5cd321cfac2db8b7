"""Training requests written for this project, by template: kinds the public sets lack, above all in Chinese.

Knows no file and no model. Each template belongs to one split, so that no template is both trained and tested on.
"""

from collections.abc import Iterator
from itertools import product

# (route, language, templates, fillers); the last fifth of each list of templates is kept for testing.
_ZH_THINGS = (
    "订单", "账号", "会员", "密码", "银行卡", "优惠券", "发票", "快递", "退款", "余额", "套餐", "手机号", "收货地址",
    "积分", "保修", "预约",
)  # fmt: skip
_ZH_SUPPORT = (
    "怎么修改{}", "如何取消{}", "我的{}为什么不能用了", "{}有问题找谁处理", "想查一下我的{}", "{}多久能到账",
    "请问{}在哪里看", "我要投诉{}的问题", "{}丢了怎么办", "{}可以转给别人吗", "你们的{}收费吗", "忘记{}了怎么找回",
    "{}一直显示处理中", "能帮我处理一下{}吗", "{}过期了还能用吗", "申请{}需要什么材料", "我的{}被冻结了",
    "绑定{}失败怎么回事", "{}的规则是什么", "{}什么时候更新", "在app里怎么设置{}", "为什么我的{}和之前不一样",
    "{}能开通自动续费吗", "我不想要{}了怎么退",
)  # fmt: skip
_EN_THINGS = (
    "subscription", "order", "invoice", "password", "account", "delivery", "refund", "membership", "licence key",
    "warranty", "plan", "booking", "email address", "two-factor login", "gift card", "data export",
)  # fmt: skip
_EN_SUPPORT = (
    "How do I change my {}?", "Where can I find my {}?", "my {} is not working", "Can I cancel the {}?",
    "What is your policy on the {}?", "I need help with my {}", "How long does the {} take?",
    "Why was my {} declined?", "Is there a fee for the {}?", "I lost my {}", "Who do I contact about the {}?",
    "Can I transfer my {} to someone else?", "do you offer a {} for students", "how to reset {}",
    "the app does not show my {}", "what happens when my {} expires",
)  # fmt: skip
_EN_TOPICS = (
    "renewable energy", "a small bakery", "remote teams", "the Roman Empire", "machine learning", "city traffic",
    "a marathon", "coral reefs", "electric cars", "a school library", "inflation", "open-source software",
    "public health", "a mobile game", "space travel", "urban gardens",
)  # fmt: skip
_EN_DEEP = (
    "Design a step by step plan to start {}.",
    "Compare two different approaches to {} and say which is better and why.",
    "Write a detailed essay on the future of {}.", "Analyse the long-term risks and benefits of {}.",
    "Create a budget and timeline for {}.", "Argue both sides of the debate about {}.",
    "Write a Python program that simulates {}.", "What would happen if {} did not exist? Reason through it.",
    "Evaluate this strategy for {} and propose improvements.", "Write a short story that involves {}.",
    "Suggest ten original ideas for {}.", "Prove or disprove: spending on {} always pays for itself.",
    "Explain the trade-offs between cost and quality in {}.", "Outline a research proposal about {}.",
    "Think through the ethical questions raised by {}.", "Devise an experiment to measure the effect of {}.",
)  # fmt: skip
_ZH_TOPICS = (
    "新能源汽车", "一家小面馆", "远程办公", "唐朝", "人工智能", "城市交通", "马拉松", "珊瑚礁", "在线教育",
    "社区图书馆", "通货膨胀", "开源软件", "公共卫生", "手机游戏", "太空旅行", "城市农业",
)  # fmt: skip
_ZH_DEEP = (
    "请为{}制定一份分步计划", "比较关于{}的两种思路，说明哪种更好", "写一篇关于{}的文章，要求论点清楚",
    "分析{}的长期风险和收益", "为{}做一份预算和时间表", "围绕{}写出正反两方的论证", "用Python写一个模拟{}的程序",
    "如果没有{}，世界会怎样？请推理", "评估以下关于{}的策略并提出改进", "写一个和{}有关的短篇故事",
    "为{}想十个有创意的点子", "证明或反驳：对{}的投入总能收回成本", "说明{}中成本与质量的权衡",
    "列出一份关于{}的研究提纲", "思考{}带来的伦理问题", "设计一个实验来衡量{}的影响",
)  # fmt: skip
_EN_SENTENCES = (
    "The meeting moved to Friday.", "He don't like the new office.", "I loved the film but the ending was slow.",
    "Our sales grew last quarter.", "The parcel arrived broken and nobody called back.",
    "She have finished the report.", "It rains a lot in April.", "The soup was cold.",
)  # fmt: skip
_EN_DIRECT = (
    "Translate into French: {}", "Fix the grammar: {}", "Rewrite this more politely: {}",
    "Is this positive or negative? {}", "Summarize in one line: {}", "Make this sentence shorter: {}",
    "Turn this into a question: {}", "Say this in other words: {}", "List the nouns in this sentence: {}",
    "Change to past tense: {}",
)  # fmt: skip
_ZH_SENTENCES = (
    "会议改到周五了。", "这部电影很好看，就是结尾太慢。", "上个季度销售额增长了。",
    "包裹到的时候已经破了，没人回电话。", "四月经常下雨。", "汤是凉的。", "他已经把报告写完了。", "我们明天再讨论。",
)  # fmt: skip
_ZH_DIRECT = (
    "翻译成英文：{}", "改正语病：{}", "换一种更礼貌的说法：{}", "判断情感是积极还是消极：{}", "用一句话概括：{}",
    "把这句话缩短：{}", "改成疑问句：{}", "换个说法：{}", "找出句子里的名词：{}", "润色一下：{}",
)  # fmt: skip
_EN_PLACES = (
    "Lisbon", "photosynthesis", "the Suez Canal", "insulin", "the violin", "Mount Fuji", "the Black Death", "tides",
    "bitcoin", "the Mongol Empire", "vaccines", "glaciers", "silk", "volcanoes", "the printing press", "sleep",
)  # fmt: skip
_EN_RAG = (
    "Explain how {} works", "Why does {} matter?", "What are the causes and effects of {}?",
    "How did {} change over time?", "Describe the history of {}", "What do the documents say about {}?",
    "Give an overview of {}", "How is {} related to trade and climate?", "What are the main arguments about {}?",
    "what should I know about {}",
)  # fmt: skip
_ZH_PLACES = (
    "里斯本", "光合作用", "苏伊士运河", "胰岛素", "小提琴", "富士山", "黑死病", "潮汐", "比特币", "蒙古帝国", "疫苗",
    "冰川", "丝绸", "火山", "印刷术", "睡眠",
)  # fmt: skip
_ZH_RAG = (
    "{}是怎么形成的", "为什么{}很重要", "{}的原因和影响有哪些", "{}经历了怎样的变化", "介绍一下{}的历史",
    "资料里是怎么说{}的", "{}的基本情况是什么", "{}和贸易、气候有什么关系", "关于{}有哪些主要观点",
    "{}的工作原理是什么",
)  # fmt: skip
_EN_FACTS = (
    "Who discovered {}?", "When was {} first described?", "What is another name for {}?",
    "Which country is known for {}?", "How old is {}?", "Where does the word for {} come from?",
    "what year did people first hear of {}", "who wrote the first book about {}",
)  # fmt: skip
_ZH_FACTS = (
    "{}是谁最早发现的", "{}最早出现在哪一年", "{}的别名是什么", "{}位于哪里", "{}有多少年历史", "{}属于哪个国家",
    "第一本写{}的书是谁写的", "{}的英文名是什么",
)  # fmt: skip
_EN_KINDS = (
    "animal", "river", "mountain", "country", "city", "bird", "lake", "planet", "language", "train", "island",
    "tree", "bridge", "desert",
)  # fmt: skip
_EN_MOST = (
    "what is the fastest {}", "What is the largest {} in the world?", "Which {} is the oldest?",
    "name of the smallest {}", "Where is the tallest {}?", "which is the longest {} in Asia",
)  # fmt: skip
_ZH_KINDS = (
    "动物", "河流", "山", "国家", "城市", "鸟", "湖泊", "行星", "语言", "火车", "岛屿", "树", "桥", "沙漠",
)  # fmt: skip
_ZH_MOST = (
    "最快的{}是什么", "世界上最大的{}是哪个", "哪个{}最古老", "最小的{}叫什么", "最高的{}在哪里",
    "亚洲最长的{}是哪一个",
)  # fmt: skip

_SETS: tuple[tuple[str, str, int, tuple[str, ...], tuple[str, ...]], ...] = (
    ("faq", "zh", 0, _ZH_SUPPORT, _ZH_THINGS), ("faq", "en", 0, _EN_SUPPORT, _EN_THINGS),
    ("deep", "zh", 2, _ZH_DEEP, _ZH_TOPICS), ("deep", "en", 2, _EN_DEEP, _EN_TOPICS),
    ("direct", "zh", 0, _ZH_DIRECT, _ZH_SENTENCES), ("direct", "en", 0, _EN_DIRECT, _EN_SENTENCES),
    ("rag", "zh", 1, _ZH_RAG, _ZH_PLACES), ("rag", "en", 1, _EN_RAG, _EN_PLACES),
    ("extract", "zh", 0, _ZH_MOST, _ZH_KINDS), ("extract", "en", 0, _EN_MOST, _EN_KINDS),
    ("extract", "zh", 0, _ZH_FACTS, _ZH_PLACES), ("extract", "en", 0, _EN_FACTS, _EN_PLACES),
)  # fmt: skip


def authored() -> Iterator[tuple[str, str, str, int, str]]:
    """(text, language, route, depth bucket, split) of every filled template."""
    for route, language, depth, templates, fillers in _SETS:
        kept = len(templates) - max(1, len(templates) // 5)
        for (t, template), filler in product(enumerate(templates), fillers):
            split = "test" if t >= kept else "calibration" if t % 8 == 7 else "train"
            yield template.format(filler), language, route, depth, split
