# ruff: noqa: E501  (templates stay whole)
"""A second, independent generator of pairs that must not meet: other templates and other words than `cache_polarity`.

Templates are written as `kind | frame | value / value ...`; every pair of values gives a pair of questions, and order
frames exchange their two values. A third of the templates, picked by checksum, is *sealed*: its results were not looked
at while guards were mended; `SHOAL_SEALED=1` adds them. Two thirds are *open*: they are what was mended with. A *third part*
was written when the veto of near copies was frozen, and run once; it also holds true paraphrases that are near copies.
A *fourth* (`_cache_fourth.py`) was written after that, in the same way, with paraphrases near and loose.

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

from _cache_fourth import FOURTH, FOURTH_PARAPHRASES
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

# The third part was written when the veto of near copies (`cache/copies.py`, `cache/swap.py`) was frozen, and run once.
THIRD = """
number | How many stairs lead up to the {} floor? | third / 4th / eleventh / 14th
number | Does the ticket stay valid for {} minutes? | 60 / 90 / ninety-five / 120
number | What changed between chapter 2 and chapter {}? | 3 / 5 / 13
number | Is a score of {} enough to pass? | 55 / 65 / 5.5 / 56
number | Can {} adults share one cabin? | two / three / 6 / seven
number | 第{}届奥运会在哪里举办? | 29 / 三十 / 31 / 十九
number | 每周跑{}次够吗? | 3 / 5 / 四 / 七
number | 存{}元有多少利息? | 1000 / 10000 / 两千 / 1500
unit | Is 15 {} of rope enough for the climb? | metres / feet / yards / kilometres
unit | How long does it take to burn 300 {}? | calories / grams / litres
unit | 这袋米有20{}吗? | 公斤 / 斤 / 克
currency | Would {} be a fair price for the bike? | £80 / €80 / $80 / £18
currency | {}能在当地买些什么? | 50欧元 / 50美元 / 15欧元
date | Is the office closed on {}? | 24 December / 24 November / 14 December / 4 December
date | Which films came out in {}? | July 1994 / June 1994 / July 1949
date | {}那天下雨了吗? | 6月18日 / 6月8日 / 8月16日
time | Is the gym still open at {}? | 9:30 pm / 9:30 am / 10:30 pm
time | {}还能办理入住吗? | 下午3点 / 凌晨3点 / 下午5点
version | Is the driver compatible with kernel {}? | 5.10 / 5.15 / 6.1 / 5.1
version | 怎么升级到{}版本? | 3.8 / 3.18 / 8.3
opposite | Are the rooms facing the street {}? | noisy / quiet
opposite | Can the jury {} the verdict? | uphold / overturn
opposite | Does salt {} the freezing point? | raise / depress
opposite | Which stocks have been {} lately? | gaining / falling
opposite | How do I {} the curtains with a remote? | draw / part
opposite | Is it common to {} a job offer by mail? | take / turn down
opposite | Is the soup too {} for children? | spicy / mild
opposite | When do the flowers {}? | bloom / wither
opposite | Do I get a refund if I {} early? | arrive / depart
opposite | How do I {} the glue from the table? | apply / scrape
opposite | Is the {} lane closed at the bridge? | inside / outside
opposite | Are {} apples better for a pie? | sweet / sour
opposite | Who {} the new tax law? | supports / opposes
opposite | Why do my plants {} in this room? | thrive / die
opposite | Can I {} the zip of the tent from inside? | fasten / undo
opposite | Should the lid be {} during cooking? | on / off
opposite | Is a {} mattress good for the back? | firm / soft
opposite | Where can I {} a stray dog? | adopt / surrender
opposite | Does the tide {} in the morning? | come in / go out
opposite | How do I {} my old phone number? | keep / drop
opposite | What makes people {} each other? | trust / distrust
opposite | Is the {} of the box made of steel? | lid / base
opposite | Is the road {} at this time of day? | busy / empty
opposite | Did the company {} last year? | make a profit / make a loss
opposite | 这条路平时{}吗? | 拥挤 / 通畅
opposite | 哪些人{}这项改革? | 支持 / 反对
opposite | 床垫{}一点好吗? | 硬 / 软
opposite | 这种植物喜欢{}吗? | 潮湿 / 干燥
opposite | 怎么{}这条规则? | 遵守 / 违反
opposite | 法院会{}原判吗? | 维持 / 推翻
opposite | 盐会使冰点{}吗? | 上升 / 下降
opposite | 怎样才能{}旧号码? | 保留 / 放弃
opposite | 公司去年{}了吗? | 盈利 / 亏损
opposite | 孩子{}老师怎么办? | 喜欢 / 害怕
opposite | 窗户朝{}的房间贵吗? | 南 / 北
opposite | 怎么{}拉链? | 拉上 / 解开
before/after | Do I have to stretch {} a run? | before / after
before/after | Which tests are done {} the operation? | before / following
before/after | Was the wall built {} the war? | during / after / before
before/after | 手术{}要做哪些检查? | 之前 / 之后
before/after | 跑步{}要拉伸吗? | 前 / 后
negation | Which rooms are {}heated? | - / not
negation | Why do cats {}swim? | - / not
negation | Are contractors {}insured by us? | - / not
negation | Is the offer {}binding? | - / non-
negation | Can I travel {} a valid passport? | with / without
negation | Do the lifts {} stop at night? | always / never
negation | 哪些房间{}供暖? | - / 不
negation | 为什么猫{}游泳? | 会 / 不会
negation | 这份报价{}约束力吗? | 有 / 没有
order | Does {} travel faster than {}? | sound / light ; an eagle / a falcon
order | Should I apply {} before {}? | primer / paint ; conditioner / shampoo
order | Did the {} blame the {} for the delay? | builder / architect ; airline / airport ; pilot / controller
order | Can a {} become a {}? | nurse / doctor ; trust / charity
order | Is {} closer to {} than to us? | Malta / Tunisia ; Cyprus / Turkey
order | Was {} influenced by {}? | Haydn / Mozart ; Plato / Socrates
order | How do I replace {} with {}? | butter / oil ; gas / electricity ; spaces / tabs
order | Does the {} report to the {}? | board / council ; clinic / hospital
order | What share of {} comes from {}? | milk / goats ; income / rent
order | Which {} was named after a {}? | city / general ; mountain / king
order | Who showed the {} to the {}? | letter / lawyer ; nurse / patient
order | How far is {} south of {}? | Turin / Zurich ; Perth / Dundee
order | {}影响了{}吗? | 海顿 / 莫扎特 ; 唐诗 / 宋词
order | {}能变成{}吗? | 护士 / 医生 ; 毛虫 / 蝴蝶
order | {}跑得比{}快吗? | 猎豹 / 羚羊 ; 马 / 狗
order | 怎么用{}代替{}? | 黄油 / 植物油 ; 空格 / 制表符
order | 先涂{}再涂{}可以吗? | 底漆 / 面漆 ; 防晒霜 / 粉底
order | {}责怪{}了吗? | 航空公司 / 机场 ; 房东 / 租客
order | {}在{}的南边吗? | 长沙 / 武汉 ; 郑州 / 石家庄
order | {}借给{}多少钱? | 银行 / 公司 ; 姐姐 / 弟弟
name | Who composed {}? | Tosca / Fidelio / Carmen / Parsifal
name | What do {} feed on? | otters / puffins / geckos / moles
name | Is there a ferry to {}? | Corsica / Bornholm / Ibiza / Gotland
name | How do I get rid of {}? | moths / mildew / nettles / hiccups
name | Which vitamin is found in {}? | kale / liver / almonds / mushrooms
name | Does {} sponsor the marathon? | Adidas / Siemens / Nestle / Philips
name | How do I remove {} from a carpet? | wax / ink / red wine / chewing gum
name | {}吃什么? | 水獭 / 壁虎 / 鼹鼠 / 海鹦
name | 去{}有渡轮吗? | 舟山 / 涠洲岛 / 嵊泗 / 鼓浪屿
name | 怎么去除地毯上的{}? | 红酒 / 墨水 / 口香糖 / 蜡油
name | {}含有哪种维生素? | 菠菜 / 杏仁 / 蘑菇 / 猪肝
name | 歌剧《{}》的作曲家是谁? | 卡门 / 托斯卡 / 茶花女
object | How do I reset the {} on the treadmill? | timer / incline / display
object | Can I lend my {} to a neighbour? | drill / season ticket / parking permit
object | Where is the {} of the hotel? | sauna / gym / reception / car park
object | Do I need a {} for the hike? | guide / permit / helmet
object | 怎么重置跑步机的{}? | 计时器 / 坡度 / 屏幕
object | 酒店的{}在哪里? | 健身房 / 前台 / 停车场
object | 徒步需要带{}吗? | 头盔 / 帐篷 / 雨衣
added | Can I bring guests to the {}party? | - / office / birthday
added | Are {}children admitted to the show? | - / small / unaccompanied
added | How much is the {}membership? | - / family / student
added | Does the insurance pay for {}damage? | - / water / wilful
added | {}会员费是多少? | - / 家庭 / 学生
added | 保险赔偿{}损失吗? | - / 水灾 / 故意
question kind | {} was the festival moved? | When / Why / Where
question kind | {} pays for the repairs? | Who / Which department
question kind | {} is the tunnel? | How long / How wide / How old
question kind | {} do eels breed? | Where / When / Why
question kind | 音乐节{}改期? | 为什么 / 什么时候
question kind | 修理费由{}出? | 谁 / 哪个部门
question kind | 隧道有{}? | 多长 / 多宽
question kind | 鳗鱼{}产卵? | 在哪里 / 什么时候 / 为什么
quoted | Who sang "{}"? | Yesterday / Imagine / Jolene
quoted | What does `{}` return? | len(x) / max(x) / sorted(x)
quoted | “{}”是什么意思? | 守株待兔 / 画蛇添足 / 亡羊补牢
"""

# True paraphrases that are near copies: the veto should let them meet.
PARAPHRASES = """
How many stairs lead up to the tower? | How many stairs are there up to the tower?
Is the gym open on Sunday? | On Sunday, is the gym open?
Who composed this opera? | Who was this opera composed by?
How do I remove wax from a carpet? | How can I remove wax from the carpet?
Where is the reception of the hotel? | Where is the hotel's reception?
Do I need a permit for the hike? | do i need a permit for the hike please
How do I replace butter with oil? | How could I replace butter with oil?
What do otters eat? | Please tell me what otters eat.
How long is the tunnel? | Hi, how long is the tunnel?
Why was the festival moved? | why has the festival been moved
How do I begin the night backup? | How do I start the night backup?
How do I purchase a season ticket? | How do I buy a season ticket?
Are children admitted to the show? | Are kids admitted to the show?
Can I bring guests to the party? | May I bring guests to the party?
Is the road busy in the morning? | Is the road busy in the mornings?
When do eels breed? | when is it that eels breed?
How do I delete my old phone number? | How do I remove my old phone number?
Which tests are done before the operation? | What tests are done before the operation?
Can I travel without a passport? | Could I travel without a passport?
Who won the marathon in 2019? | In 2019, who won the marathon?
Does the ferry take cars? | Does the ferry take cars, please?
If it rains, is the match cancelled? | Is the match cancelled if it rains?
Is there a ferry to Corsica? | is there any ferry to Corsica
How do I modify my booking? | How do I change my booking?
Where can I leave my luggage? | Where could I leave my luggage?
What is the price of a family ticket? | What is the cost of a family ticket?
How do I get rid of moths? | how can i get rid of moths?
Is breakfast included? | Is breakfast included, thanks
My parcel has not arrived, what should I do? | What should I do, my parcel hasn't arrived
Do you accept credit cards? | Do you accept a credit card?
How do I repair a broken zip? | How do I fix a broken zip?
What are the opening hours of the museum? | What are the museum's opening hours?
How is the tax calculated? | How do they calculate the tax?
Is coffee or tea better for the stomach? | Is tea or coffee better for the stomach?
How do I send a picture by mail? | How do I send a photo by e-mail?
Which rooms are not heated? | Which rooms aren't heated?
How do I turn the alarm off? | How do I turn off the alarm?
Did the council approve the plan? | Was the plan approved by the council?
How do I login to the portal? | How do I log in to the portal?
Can I cancel within 14 days? | Can I cancel within fourteen days?
健身房周日开门吗? | 周日健身房开门吗?
怎么去除地毯上的红酒? | 如何去除地毯上的红酒?
酒店的前台在哪里? | 请问酒店前台在哪儿?
徒步需要带帐篷吗? | 徒步要带帐篷吗
会员费是多少? | 请问会员费是多少呢?
隧道有多长? | 这个隧道有多长?
手术之前要做哪些检查? | 手术以前要做哪些检查?
怎么购买月票? | 如何买月票?
怎么取消预订? | 预订怎么取消?
下雨的话比赛取消吗? | 比赛下雨的话取消吗?
2019年谁赢了马拉松? | 谁赢了2019年的马拉松?
能带宠物吗? | 可不可以带宠物?
怎么修改我的预订? | 怎样更改预订?
渡轮可以带车吗? | 渡轮能带车吗?
鳗鱼什么时候产卵? | 鳗鱼何时产卵?
咖啡和茶哪个对胃好? | 茶和咖啡哪个对胃好?
护照丢了怎么办? | 我的护照丢了，怎么办?
哪些房间不供暖? | 哪些房间没有供暖?
忘记密码怎么办? | 忘了密码怎么办?
可以用信用卡付款吗? | 能用信用卡付款吗?
怎么删除旧号码? | 怎么删掉旧号码?
多久可以收到快递? | 多长时间能收到快递?
学生有优惠吗? | 请问学生有优惠吗? 谢谢
十四天内可以退货吗? | 14天内可以退货吗?
"""


def _sealed(frame: str) -> bool:
    return zlib.crc32(frame.encode()) % 3 == 0


def _frame(frame: str, value: str) -> str:
    """The frame with a value; "-" stands for nothing; before an English word, all but prefixes bring their space along."""
    before, _, after = frame.partition("{}")
    spaced = after[:1].isascii() and after[:1].isalpha() and value not in ("in", "non-")
    word = "" if value == "-" else value + " " * spaced
    return f"{before}{word}{after}"


def pairs(*, sealed: bool) -> Iterator[Pair]:
    """Pairs of the open templates, or of the sealed ones."""
    lines = [line for line in TEMPLATES.strip().splitlines() if _sealed(line.split(" | ")[1].strip()) == sealed]
    yield from _made(lines)


def _made(lines: list[str]) -> Iterator[Pair]:
    for line in lines:
        kind, frame, values = (part.strip() for part in line.split(" | "))
        if kind == "order":
            for couple in values.split(" ; "):
                x, y = (v.strip() for v in couple.split("/"))
                yield kind, frame.format(x, y), frame.format(y, x)
        else:
            parts = [v.strip() for v in values.split(" / ")]
            yield from ((kind, _frame(frame, a), _frame(frame, b)) for a, b in combinations(parts, 2))


def kept(look: Look, lines: str) -> dict[str, int]:
    """How many true paraphrases meet, each alone in the cache, and how many the veto keeps apart."""
    found = vetoed = 0
    twins = [line.split(" | ") for line in lines.strip().splitlines()]
    for stored, asked in twins:
        look.clear()
        look.store([stored], [stored])
        hit = look.ask(asked) is not None
        veto = look.matcher.conflict(stored, asked)
        found, vetoed = found + hit, vetoed + (veto is not None)
        if not hit:
            print(f"apart: {stored} / {asked}: {veto or 'rated too low'}")
    print(f"paraphrases that meet: {found} of {len(twins)}; vetoed: {vetoed}")
    return {"asked": len(twins), "right": found, "vetoed": vetoed}


def main() -> None:
    look = Look()
    out: dict[str, object] = {"machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}
    wanted = {"open": list(pairs(sealed=False))}
    if os.environ.get("SHOAL_SEALED"):
        wanted["sealed"] = list(pairs(sealed=True))
        wanted["third"] = list(_made(THIRD.strip().splitlines()))
        wanted["fourth"] = list(_made(FOURTH.strip().splitlines()))
        out["third, paraphrases"] = kept(look, PARAPHRASES)
        out["fourth, paraphrases"] = kept(look, FOURTH_PARAPHRASES)
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
