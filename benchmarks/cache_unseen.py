# ruff: noqa: E501  (templates stay whole)
"""A second, independent generator of pairs that must not meet: other templates and other words than `cache_polarity`.

Templates are written as `kind | frame | value / value ...`; every pair of values gives a pair of questions, and order
frames exchange their two values. A third of the templates, picked by checksum, is *sealed*: its results were not looked
at while guards were mended; `SHOAL_SEALED=1` adds them. Two thirds are *open*: they are what was mended with.

    SHOAL_DATA=../shared/data python benchmarks/cache_unseen.py
"""

import json
import os
import platform
import sys
import time
import zlib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cache_polarity import Look, Pair, false_hits

from shoal.cache.calibrate import clopper_pearson

TEMPLATES = """
number | Our contract ends in {} months, can we leave early? | two / 6 / eighteen / 11
number | Do pensioners over {} travel for free? | 60 / 65 / seventy / 56
number | How many calories are in {} slices of rye bread? | 2 / three / 12 / 22
number | Which bus leaves from platform {}? | 4 / 14 / 41 / 7
number | Is a tolerance of {} good enough for furniture? | 0.5 mm / 5 mm / 0.5 cm / 0.05 mm
number | What does error {} mean on my dishwasher? | E15 / E24 / E51 / F15
number | How do I get from level {} to the next one? | 8 / 18 / eighty / 81
number | What is the square root of {}? | 144 / 169 / 441 / 1.44
number | Who won the world cup in {}? | 1990 / 1994 / 2006 / 1966
number | Can a group of {} book the cabin? | five / 15 / 25 / fifty
number | Explain article {} of the constitution | 5 / 15 / 51 / fifteen b
number | 高铁提前{}分钟停止检票? | 3 / 5 / 十五 / 30
number | 一个班最多可以有{}名学生? | 25 / 35 / 四十五 / 52
number | 距离截止还有{}天怎么办? | 3 / 10 / 十三 / 30
number | {}加七等于几? | 八 / 18 / 80 / 28
number | 坐{}路公交车能到博物馆吗? | 6 / 16 / 61 / 106
number | 谁赢得了{}年的世界杯? | 1990 / 1994 / 2006 / 1966
number | 第{}条规定的内容是什么? | 五 / 十五 / 51 / 五十
unit | How much paint do I need for 20 {}? | square metres / square feet / metres / litres
unit | Is 30 {} too hot for a baby's bath? | degrees celsius / degrees fahrenheit / kelvin
unit | What is 7 {} in the imperial system? | kilograms / grams / tonnes / litres
unit | Can I survive on 500 {} a month? | euros / dollars / pounds / rupees
unit | Is a speed of 90 {} allowed here? | km/h / mph / m/s
unit | Will a 4 {} file fit into a mail? | MB / GB / KB / TB
unit | 每天跑5{}对膝盖好吗? | 公里 / 英里 / 分钟 / 小时
unit | 100{}能换多少人民币? | 美元 / 欧元 / 日元 / 英镑
unit | 房间只有12{}够住吗? | 平方米 / 平方英尺 / 米
unit | 这个文件有3{}能发邮件吗? | MB / GB / KB
currency | Is {} a fair hourly wage? | $12 / €12 / £12 / $21
currency | Can I get a decent bicycle for {}? | 300 dollars / 300 euros / 800 dollars / 30 dollars
currency | {}一晚的民宿值得住吗? | 200元 / 200美元 / 20元 / 120元
date | Is the museum shut on {}? | 1 May / 1 June / 11 May / 21 May
date | Which holidays fall into {}? | March 2025 / May 2025 / March 2026 / April 2025
date | Was {} a full moon night? | 2023-08-31 / 2023-08-13 / 2023-07-31 / 2022-08-31
date | What was decided at the meeting of {}? | 12 January / 21 January / 12 June / 12 July
date | {}是不是工作日? | 2025年10月1日 / 2025年10月11日 / 2025年11月1日 / 2024年10月1日
date | {}出生的人是什么星座? | 3月21日 / 3月12日 / 8月21日 / 9月21日
time | Does the ferry run at {}? | 5:15 am / 5:15 pm / 15:50 / 5:50 am
time | May builders make noise before {}? | 7 a.m. / 8 a.m. / 7 p.m. / noon
time | {}以后还有地铁吗? | 晚上10点 / 晚上11点半 / 上午10点 / 凌晨1点
version | Does the plugin work with Django {}? | 3.2 / 4.2 / 4.1 / 5.0
version | Are there breaking changes in node v{}? | 18 / 20 / 18.2.1 / 18.1.2
version | How do I roll back to release {}? | 1.4.0 / 1.4.10 / 4.1.0 / 2.4.0
version | {}系统的手机能装这个软件吗? | 安卓9 / 安卓10 / 安卓12 / 安卓13
version | 怎么把固件退回到{}版? | 2.0.1 / 2.1.0 / 1.2.0 / 2.0.10
opposite | Is it rude to {} early from a dinner? | arrive / leave
opposite | Can the landlord {} the rent this year? | raise / cut
opposite | How can I {} my appetite? | stimulate / suppress
opposite | What makes bread {}? | soft / hard
opposite | Does caffeine {} blood vessels? | widen / narrow
opposite | Where do I {} the trial? | begin / end
opposite | Which of these is the {} of the two roads? | safer / more dangerous
opposite | Can anybody {} the group chat? | join / leave
opposite | Why did sales {} in autumn? | rise / fall
opposite | How do I {} the blinds from my phone? | open / shut
opposite | Should the fridge door be {} while defrosting? | open / closed
opposite | Is the {} entrance step-free? | front / rear
opposite | Who {} the match last night? | won / lost
opposite | Do I have to {} the package before noon? | pick up / drop off
opposite | Can I {} the subtitles? | switch on / turn off
opposite | How long does it take to {} a car battery? | charge / discharge
opposite | What is the {} wage in this trade? | minimum / maximum
opposite | May employees {} the software on their own? | install / remove
opposite | How do I {} a shared folder? | mount / unmount
opposite | When does the river {}? | freeze / melt
opposite | Is {} tyre pressure dangerous? | high / low
opposite | Are the {} stairs lit at night? | inner / outer
opposite | How can a manager {} trust? | build / destroy
opposite | Which fields are {} in the form? | mandatory / optional
opposite | Can I {} to the beta programme? | opt in / opt out
opposite | What happens if the pressure is too {}? | strong / weak
opposite | Why is the water so {} today? | clear / murky
opposite | How do I {} a colleague's praise? | accept / refuse
opposite | Is it {} than last year? | warmer / colder
opposite | Does exercise make you {}? | hungrier / less hungry
opposite | Do prices go {} after the holidays? | up / down
opposite | Are {} numbers shown first? | even / odd
opposite | Is the {} of the page printed? | top / bottom
opposite | What do {} usually pay for? | tenants / landlords
opposite | Which side effects are {}? | common / rare
opposite | How do I {} the seat? | recline / raise
opposite | 怎么让面包更{}? | 软 / 硬
opposite | 房东可以{}房租吗? | 涨 / 降
opposite | 咖啡会{}血管吗? | 扩张 / 收缩
opposite | 怎么{}共享文件夹? | 挂载 / 卸载
opposite | 轮胎气压太{}会怎样? | 高 / 低
opposite | {}的楼梯晚上有灯吗? | 里面 / 外面
opposite | 公司怎么{}客户的信任? | 赢得 / 失去
opposite | 这些字段是{}的吗? | 必填 / 选填
opposite | 昨晚的比赛谁{}了? | 赢 / 输
opposite | 水为什么这么{}? | 清 / 浑
opposite | 孩子{}睡好吗? | 早 / 晚
opposite | 怎么{}群聊? | 加入 / 退出
opposite | 为什么秋天销量{}? | 上升 / 下降
opposite | 手机怎么{}定位? | 打开 / 关掉
opposite | 考试{}要不要吃东西? | 前 / 后
opposite | 电池{}需要多长时间? | 充电 / 放电
opposite | 这种材料{}吗? | 防水 / 不防水
opposite | 怎么把图片{}? | 放大 / 缩小
opposite | {}温度是多少? | 最高 / 最低
opposite | 工资是税{}的吗? | 前 / 后
before/after | Can I eat {} a blood test? | before / after
before/after | Do I sign the lease {} the inspection? | prior to / following
before/after | Should the yeast be added {} the flour? | before / after
before/after | What did people use {} the invention of paper? | before / since
before/after | 打疫苗{}可以运动吗? | 之前 / 之后
before/after | 签合同{}要注意什么? | 以前 / 以后
before/after | 运动{}多久可以洗澡? | 前 / 后
negation | Why are these apples {}sold abroad? | - / not
negation | Which seats are {}included in the price? | - / not
negation | Should the dough {}rest overnight? | - / not
negation | Who must {}attend the hearing? | - / not
negation | What can I cook {} an oven? | with / without
negation | Do cats {} like milk? | always / never
negation | Is the lounge {}open to families? | - / no longer
negation | Can the phone be used {} a SIM card? | with / without
negation | Which guests {} a visa? | need / do not need
negation | When is a receipt {}required? | - / not
negation | Is anybody {}exempt from the fee? | - / not
negation | Are these berries {}edible? | - / in
negation | Is this mushroom {}toxic? | - / non-
negation | 哪些座位{}包含在票价里? | - / 不
negation | 为什么这些苹果{}出口? | - / 不
negation | 谁{}用参加听证会? | - / 不
negation | {}带身份证能进场吗? | - / 没
negation | 面团{}发酵会怎样? | - / 不
negation | 孩子{}吃早饭可以吗? | - / 不
negation | 这个软件{}支持中文吗? | - / 不
negation | 已经{}报名的人怎么办? | - / 没
order | Is it cheaper to go from {0} to {1}? | Turin / Milan ; Malmo / Aarhus ; Perth / Darwin
order | Did {0} beat {1} at home? | Ajax / Porto ; Celtic / Rangers
order | Can I exchange {0} for {1} at the airport? | francs / pesos ; miles / vouchers
order | Does {0} lead to {1}? | drought / famine ; debt / inflation ; boredom / overeating
order | Is {0} older than {1}? | Prague / Vienna ; chess / poker ; Judaism / Islam
order | Is {0} heavier than {1}? | iron / zinc ; honey / milk
order | How do I translate {0} into {1}? | Polish / Czech ; Hindi / Tamil
order | Does a {0} eat a {1}? | fox / badger ; hawk / owl
order | Can a {0} sue a {1}? | tenant / neighbour ; teacher / parent
order | Who taught {0} before {1}? | physics / chemistry ; Latin / Greek
order | Is {0} a part of {1}? | Zeeland / Holland ; algebra / geometry
order | How do I convert {0} into {1}? | hectares / acres ; JSON / YAML
order | {0}能代替{1}吗? | 蜂蜜 / 白糖 ; 牛奶 / 豆浆
order | {0}会吃{1}吗? | 狐狸 / 刺猬 ; 老鹰 / 猫头鹰
order | {0}比{1}便宜吗? | 高铁 / 大巴 ; 红茶 / 绿茶
order | 从{0}到{1}要多久? | 青岛 / 济南 ; 厦门 / 福州
order | 怎么把{0}翻译成{1}? | 日语 / 韩语 ; 英语 / 法语
order | {0}会引起{1}吗? | 干旱 / 饥荒 ; 贫血 / 头晕
order | {0}属于{1}吗? | 香港 / 广东 ; 代数 / 几何
order | {0}打败了{1}吗? | 切尔西 / 利物浦 ; 甲队 / 乙队
name | Who wrote {}? | Dracula / Emma / Ulysses / Middlemarch
name | When was {} born? | Beethoven / Schubert / Kepler / Gauss
name | What is the population of {}? | Ghana / Chile / Nepal / Malta
name | Does {} have a metro? | Leipzig / Turin / Porto / Lyon
name | How do I export contacts from {}? | Outlook / Thunderbird / Gmail / Notion
name | Is {} listed on the stock exchange? | Bosch / Lego / Ikea / Bayer
name | What are the symptoms of {}? | measles / malaria / scurvy / asthma
name | How do I prune {}? | roses / lavender / plum trees / hydrangeas
name | Which rivers flow through {}? | Basel / Seville / Pune / Hanoi
name | Can I pay with {}? | PayPal / Klarna / Bitcoin / Visa
name | How do I sharpen a {}? | chisel / razor / pencil / scythe
name | What is the boiling point of {}? | ethanol / mercury / ammonia / acetone
name | {}有地铁吗? | 合肥 / 昆明 / 贵阳 / 兰州
name | {}的症状有哪些? | 麻疹 / 疟疾 / 哮喘 / 痛风
name | 《{}》是谁写的? | 三国演义 / 水浒传 / 边城 / 家
name | {}的人口是多少? | 智利 / 尼泊尔 / 加纳 / 马耳他
name | 怎么修剪{}? | 月季 / 薰衣草 / 葡萄 / 绣球
name | 能用{}付款吗? | 支付宝 / 微信 / 现金 / 信用卡
name | {}的沸点是多少? | 乙醇 / 水银 / 氨 / 丙酮
name | {}是哪年出生的? | 贝多芬 / 舒伯特 / 鲁迅 / 老舍
object | How do I renew my {}? | passport / driving licence / library card / visa
object | Where can I download the {}? | invoice / contract / manual / timetable
object | Can I transfer my {} to a friend? | ticket / subscription / reservation / points
object | What is the dress code for the {}? | wedding / interview / opera / funeral
object | How do I change the {} in the app? | language / currency / font / ringtone
object | 怎么续签{}? | 护照 / 签证 / 租约 / 借书证
object | 在哪里下载{}? | 发票 / 合同 / 说明书 / 课程表
object | {}可以转让给朋友吗? | 门票 / 会员 / 积分 / 优惠券
object | 怎么更换应用里的{}? | 语言 / 字体 / 铃声 / 头像
question kind | {} was the cathedral finished? | When / Why / By whom
question kind | {} do the swallows return? | When / Where / Why
question kind | {} is the water in the lake? | How deep / How cold / How clean
question kind | {} sells fresh yeast? | Who / Which street
question kind | {} does the lecture last? | How long / Until when
question kind | 大教堂是{}完工的? | 什么时候 / 为什么 / 谁
question kind | 湖水有{}? | 多深 / 多冷
question kind | 燕子{}飞回来? | 什么时候 / 从哪里 / 为什么
quoted | What does "{}" mean in a contract? | force majeure / pro rata / bona fide / ad hoc
quoted | Who said "{}"? | less is more / time is money / knowledge is power
quoted | “{}”这句诗是谁写的? | 床前明月光 / 春眠不觉晓 / 海内存知己
quoted | What does `{}` do in bash? | set -e / set -u / trap / shopt
quoted | Why does `{}` return nothing? | list.sort() / dict.update() / print()
quoted | `{}`命令有什么用? | ls -a / ls -l / chmod / chown
"""


def _sealed(frame: str) -> bool:
    return zlib.crc32(frame.encode()) % 3 == 0


def _frame(frame: str, value: str) -> str:
    """The frame with a value; "-" stands for nothing, and a negator in English brings its space along."""
    before, _, after = frame.partition("{}")
    word = "" if value == "-" else value + " " * (value in ("not", "no longer", "never") and after[:1].isalpha())
    return f"{before}{word}{after}"


def pairs(*, sealed: bool) -> Iterator[Pair]:
    """Pairs of the open templates, or of the sealed ones."""
    for line in TEMPLATES.strip().splitlines():
        kind, frame, values = (part.strip() for part in line.split(" | "))
        if _sealed(frame) != sealed:
            continue
        if kind == "order":
            for couple in values.split(" ; "):
                x, y = (v.strip() for v in couple.split("/"))
                yield kind, frame.format(x, y), frame.format(y, x)
        else:
            parts = [v.strip() for v in values.split(" / ")]
            yield from ((kind, _frame(frame, a), _frame(frame, b)) for a, b in combinations(parts, 2))


def main() -> None:
    look = Look()
    out: dict[str, object] = {"machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}
    wanted = {"open": list(pairs(sealed=False))}
    if os.environ.get("SHOAL_SEALED"):
        wanted["sealed"] = list(pairs(sealed=True))
    for name, made in wanted.items():
        for alone in (True, False):
            table = false_hits(look, made, alone=alone)
            table["all"] = (sum(h for h, _ in table.values()), sum(n for _, n in table.values()))
            how = "alone" if alone else "all stored"
            for kind, (hits, n) in table.items():
                low, high = clopper_pearson(hits, n)
                print(
                    f"{name:7} {how:10} {kind:14} {hits:3} of {n:4}: {1000 * hits / n:6.1f} per 1,000 (95%: {1000 * low:.1f} to {1000 * high:.1f})"
                )
            out[f"{name}, {how}"] = {kind: {"false": h, "asked": n} for kind, (h, n) in table.items()}
    folder = Path(__file__).parent / "out"
    folder.mkdir(exist_ok=True)
    (folder / "cache_unseen.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
