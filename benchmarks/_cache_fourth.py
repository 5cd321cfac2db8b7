# ruff: noqa: E501  (templates stay whole)
"""The fourth part of `cache_unseen`: written when the guards of 30 November were frozen, in fields that no earlier part
is about (law, sport, kitchen, clinic, space, shell, staff, garden). Pairs that must not meet, and true paraphrases, near
and loose. `{}` alone as a frame: the values are whole questions.
"""

FOURTH = """
number | How many players of a handball team may be fined after {} warnings? | two / 5 / three / 12
number | Does a sentence of {} count as short? | 18 months / 8 months / 18 years / eighty days
number | Bake the crust for {} or until golden? | 12 minutes / 20 minutes / 21 minutes / half an hour
number | Is a dose of {} twice daily too high for a toddler? | 2.5 ml / 25 ml / 5 ml
number | Which planet is {} times heavier than Earth? | 17 / 95 / 318
number | Kill every process that has run for over {} seconds | 30 / 300 / 90
number | 判处{}有期徒刑算重吗? | 三年 / 十三年 / 三个月
number | 面团要发酵{}才够? | 四十分钟 / 四小时 / 十四分钟
number | 员工入职满{}有年假吗? | 一年 / 半年 / 十年
date | Is the tax office closed on {}? | 24 December / 24 November / 14 December
date | Which comet passed the sun in {}? | February 1986 / April 1986 / February 1968
date | {}的判决书在哪里查? | 2023年4月8日 / 2023年8月4日 / 2024年4月8日
date | {} | Was he hired in 2012 and promoted in 2018? / Was he hired in 2018 and promoted in 2012?
date | {} | 他2003年入队、2009年退役吗? / 他2009年入队、2003年退役吗?
unit | Season the broth with 5 {} of salt? | grams / teaspoons / ounces
unit | Is the moon 1.3 light {} away? | seconds / minutes / years
unit | 花盆要{}宽? | 三十厘米 / 三十毫米 / 三十英寸
version | Which flags changed in bash {}? | 4.4 / 5.1 / 5.2
version | Does curl {} support HTTP/3? | 7.66 / 7.88 / 8.6
opposite | Should a defendant {} the plea deal? | accept / decline
opposite | May the coach {} the goalkeeper at half-time? | replace / keep
opposite | Is the sauce too {} to serve? | thin / thick
opposite | Do antibiotics make the rash {}? | better / worse
opposite | When does a star {}? | expand / collapse
opposite | How do I {} a user to a group in the shell? | add / remove
opposite | Is it wise to {} a junior colleague in public? | praise / criticise
opposite | Which shrubs {} their leaves in autumn? | keep / shed
opposite | Are roses pruned {} the frost? | before / after
opposite | Does the court {} the appeal? | grant / dismiss
opposite | Can the referee {} a red card? | issue / withdraw
opposite | Should I {} the patient's leg? | raise / lower
opposite | Is the stadium {} on match days? | full / empty
opposite | Which soups are served {}? | hot / chilled
opposite | How do I {} the log file? | compress / extract
opposite | Are night shifts {} for new staff? | compulsory / voluntary
opposite | Does this plant like {} soil? | acidic / alkaline
opposite | Which orbit is {} the belt? | inside / outside
opposite | Is she {} foul play? | guilty of / innocent of
opposite | 被告可以{}指控吗? | 承认 / 否认
opposite | 裁判能{}红牌吗? | 出示 / 撤回
opposite | 这种花喜{}吗? | 湿 / 旱
opposite | 汤太{}了怎么办? | 稀 / 稠
opposite | 恒星什么时候会{}? | 膨胀 / 坍缩
opposite | 法院会{}上诉吗? | 受理 / 驳回
opposite | 伤口可以{}水吗? | 碰 / 避
opposite | 员工可以{}加班吗? | 要求 / 拒绝
opposite | 这个药饭{}吃? | 前 / 后
opposite | 主队是{}级了吗? | 升 / 降
negation | Which witnesses {}appear in court? | did / failed to
negation | Are there herbs that {}tolerate shade? | - / don't
negation | Why {} the probe send pictures? | did / didn't
negation | Can staff {} a medical note take sick leave? | with / without
negation | Which pans are {}stick? | - / non-
negation | 哪些证人{}出庭? | 会 / 没有
negation | 香草{}耐阴吗? | - / 不
negation | {}医生证明能请病假吗? | 有 / 没有
negation | {} | Should minors be tried as adults? / Should minors never be tried as adults?
order | Can {} sue {} for damages? | employers/employees ; doctors/patients
order | Did {} pass the ball to {} before the goal? | Silva/Costa ; Meyer/Kane
order | Is {} further from the sun than {}? | Neptune/Uranus ; Ceres/Vesta
order | How do I graft {} onto {}? | pears/quinces ; apples/hawthorns
order | Does {} come before {} in the queue? | the nurse/the surgeon ; triage/payment
order | Should I fry {} before {}? | onions/garlic ; peppers/mushrooms
order | Copy from {} to {}? | the server/the laptop ; disk/tape
order | {}能起诉{}吗? | 房东/租客 ; 医生/病人
order | {}离太阳比{}远吗? | 海王星/天王星 ; 土星/木星
order | {}把球传给了{}吗? | 王磊/李强 ; 前锋/后卫
order | 先炒{}再放{}吗? | 洋葱/大蒜 ; 辣椒/蘑菇
order | {}是{}的教练吗? | 张宁/刘洋 ; 陈涛/赵敏
order | {}嫁接到{}上可以吗? | 梨树/苹果树 ; 杏/桃
order | 从{}复制到{}怎么做? | 服务器/笔记本 ; 手机/电脑
roles | {} | Who did the striker foul? / Who was the striker fouled by?
roles | {} | Did the jury convince the judge? / Was the jury convinced by the judge?
roles | {} | Which clubs did Milan beat? / Which clubs was Milan beaten by?
roles | {} | Can a virus kill bacteria? / Can a virus be killed by bacteria?
roles | {} | 前锋撞倒了门将吗? / 前锋被门将撞倒了吗?
roles | {} | 律师说服了法官吗? / 律师被法官说服了吗?
roles | {} | 米兰队淘汰了哪支球队? / 米兰队被哪支球队淘汰了?
roles | {} | 她的师父教他的徒弟吗? / 他的师父教她的徒弟吗?
name | Who captained {} that season? | Ajax / Porto / Benfica
name | Is {} visible tonight? | Saturn / Mars / Venus
name | How do I fillet {}? | trout / mackerel / cod
name | What are the symptoms of {}? | measles / mumps / rubella
name | When should {} be planted? | tulips / garlic / asparagus
name | How do I list jobs with {}? | cron / systemd / at
name | Can I appeal in {}? | Ohio / Utah / Nevada
name | {}的症状有哪些? | 麻疹 / 水痘 / 腮腺炎
name | {}什么时候播种? | 郁金香 / 大蒜 / 芦笋
name | 今晚能看到{}吗? | 土星 / 火星 / 金星
name | {}怎么去骨? | 鲈鱼 / 三文鱼 / 鲭鱼
name | 谁是{}的队长? | 山东队 / 广州队 / 国安
object | What does a {} earn in the first year? | paralegal / bailiff / notary
object | How do I sharpen a {}? | cleaver / chisel / sickle
object | Who pays for the {}? | uniform / training / parking
object | Which knee {} heal slowly? | injuries / operations
object | Where is the {} kept during the match? | trophy / match ball
object | 谁来付{}? | 制服费 / 培训费 / 停车费
object | 怎么磨{}? | 菜刀 / 凿子 / 镰刀
object | {}多久换一次? | 滤网 / 砧板 / 手套
quantity | {} apprentices pass the exam? | Do all / Do most / Do any
quantity | Is {} of the jury needed for a verdict? | half / all
quantity | {}学徒都能通过考试吗? | 所有 / 多数
quantity | {} | Has every player signed? / Has any player signed?
quantity | {} | Is the lead surgeon always present? / Is the lead surgeon ever present?
modality | {} visitors leave their bags at the gate? | Must / May
modality | 访客{}寄存背包吗? | 必须 / 可以
question kind | {} is the hearing? | When / Where / How long
question kind | {} was the goal disallowed? | Why / When
question kind | {} discovered the comet? | Who / How many people
question kind | 听证会在{}举行? | 什么时候 / 哪里
question kind | 这个进球{}被取消? | 为什么 / 什么时候
question kind | 是{}发现了彗星? | 谁 / 怎么
question kind | {} should I water the ferns? | How often / How much
added | {} | Can a tenant be evicted? / Can a tenant be evicted in winter?
added | {} | How do I remove a stain? / How do I remove a wine stain?
added | {} | Who won the cup? / Who won the junior cup?
added | {} | 房客可以被赶走吗? / 房客冬天可以被赶走吗?
added | {} | 谁赢得了杯赛? / 谁赢得了青年杯赛?
added | {} | 怎么洗衬衫? / 怎么洗真丝衬衫?
code | What does `{}` print? | ls -a / ls -A / ls
code | Explain {} in a shell script | $? / $! / $#
code | What does grep {} do? | -v / -V / -r
code | Why does {} not match? | a.*b / a.+b / a*b
code | `{}`是什么意思? | chmod 644 / chmod 755
quoted | Which film has the line "{}"? | I am your father / I am your brother / You are my father
quoted | “{}”是哪首诗里的? | 春眠不觉晓 / 春风又绿江南岸
"""

FOURTH_PARAPHRASES = """
How do I appeal a parking ticket? | How can I appeal a parking ticket?
What is the penalty for littering? | What's the penalty for littering
Who refereed the final in Lisbon? | Who was the referee of the final in Lisbon?
How long should I rest the dough? | For how long should the dough rest?
Is it safe to eat raw mushrooms? | Are raw mushrooms safe to eat?
When is the next lunar eclipse? | when's the next lunar eclipse?
How do I rename a file in bash? | What is the way to rename a file in bash?
Who pays for staff uniforms? | Who has to pay for staff uniforms?
How do I get rid of aphids on roses? | how can I get rid of aphids on my roses
Why did the referee stop the game? | What was the reason the referee stopped the game?
How do I file a complaint about a doctor? | I would like to file a complaint about a doctor, how do I do that?
How many moons does Jupiter have? | What is the number of moons Jupiter has?
What is the boiling point of olive oil? | At what temperature does olive oil boil?
Where can I buy tickets for the derby? | Where do I get tickets for the derby?
Can I freeze cooked rice? | Is it possible to freeze cooked rice?
How do I kill a process by name? | How can I kill processes by their name?
What documents do I need for a will? | Which documents are needed for a will?
How often should I repot an orchid? | How often does an orchid need repotting?
When do I get my first salary? | When will I receive my first salary?
Which vaccines does a newborn need? | What vaccines are required for a newborn?
Can my employer read my emails? | Is my employer allowed to read my emails?
How do I stop my nose from bleeding? | How can I stop a nosebleed?
Who invented the telescope? | The telescope was invented by whom?
What is the offside rule? | Please explain the offside rule
How do I undo my last commit? | How can I revert my last commit?
What should I feed a hedgehog? | What food should I give to a hedgehog?
Is chess a sport? | Does chess count as a sport?
How do I make vegan pancakes? | Recipe for vegan pancakes please
Why is the sky red at sunset? | What makes the sky red at sunset?
How much does a divorce cost? | What does a divorce cost?
Do I have to attend jury duty? | Is jury duty mandatory?
How do I transplant a young tree? | What's the best way to transplant a young tree?
What does a notary do? | What is a notary's job?
How do I check disk space in Linux? | How can I see the disk space in Linux?
Can I take ibuprofen while pregnant? | Is it okay to take ibuprofen during pregnancy?
How far is the nearest star? | What is the distance to the nearest star?
How do I claim my travel expenses? | How can I get my travel expenses reimbursed?
In 1998, who won the world cup? | Who won the world cup in 1998?
What is the difference between a lawyer and a judge? | How do a judge and a lawyer differ?
How do I cut an onion without crying? | how can you cut onions without crying?
Did the probe land on Titan? | Has the probe landed on Titan?
How do I ask for a raise? | How should I ask my boss for a raise?
Which muscles does rowing train? | What muscles are trained by rowing?
What is the minimum age for a juror? | How old must a juror be?
How do I sharpen kitchen knives at home? | How can I sharpen my kitchen knives at home?
When should I prune an apple tree? | What is the right time to prune an apple tree?
Are tomatoes a fruit? | Is a tomato a fruit?
How do I schedule a script to run daily? | How can I run a script every day?
Who can witness a signature? | Who is allowed to witness a signature?
Does the team play at home on Sunday? | Is the team playing at home this Sunday?
怎么申诉停车罚单? | 如何申诉停车罚单?
乱扔垃圾会罚多少钱? | 乱扔垃圾罚款多少?
面团要醒多久? | 面团需要醒多长时间?
生蘑菇可以吃吗? | 可以吃生蘑菇吗?
下一次月食是什么时候? | 什么时候有下一次月食?
员工制服谁付钱? | 谁付员工制服的钱?
月季长蚜虫怎么办? | 请问月季长了蚜虫怎么办?
裁判为什么暂停比赛? | 裁判暂停比赛的原因是什么?
怎么投诉医生? | 我想投诉医生，应该怎么做?
木星有几颗卫星? | 木星有多少颗卫星?
德比的门票在哪里买? | 在哪儿可以买到德比的门票?
米饭可以冷冻吗? | 煮好的米饭能不能冷冻?
立遗嘱需要哪些材料? | 立遗嘱要什么材料?
兰花多久换一次盆? | 兰花多长时间换盆一次?
第一个月的工资什么时候发? | 什么时候发第一个月的工资?
新生儿要打哪些疫苗? | 新生儿需要接种哪些疫苗?
公司可以看我的邮件吗? | 公司有权看我的邮件吗?
流鼻血怎么止? | 怎样止鼻血?
望远镜是谁发明的? | 谁发明了望远镜?
越位规则是什么? | 请解释一下越位规则
怎么撤销上一次提交? | 如何撤回上一次提交?
刺猬吃什么? | 应该给刺猬喂什么?
下棋算体育运动吗? | 下棋是不是体育运动?
日落时天空为什么是红的? | 为什么日落的时候天空是红色的?
离婚要花多少钱? | 离婚的费用是多少?
公证员是做什么的? | 公证员的工作是什么?
Linux怎么看磁盘空间? | 在Linux里怎么查看磁盘空间?
怀孕能吃布洛芬吗? | 孕妇可以吃布洛芬吗?
最近的恒星有多远? | 最近的恒星距离多远?
差旅费怎么报销? | 怎样报销差旅费?
1998年世界杯谁赢了? | 谁赢了1998年的世界杯?
律师和法官有什么区别? | 法官和律师的区别是什么?
切洋葱怎么不流泪? | 怎么切洋葱才不会流眼泪?
怎么跟老板谈加薪? | 如何向老板提出加薪?
划船锻炼哪些肌肉? | 划船能锻炼到什么肌肉?
陪审员最低年龄是多少? | 陪审员最小要几岁?
在家怎么磨菜刀? | 怎么在家里磨菜刀?
苹果树什么时候修剪? | 什么时候修剪苹果树最好?
番茄是水果吗? | 番茄算不算水果?
怎么让脚本每天自动运行? | 如何每天自动运行脚本?
球队周日在主场比赛吗? | 周日球队是在主场打吗?
扁桃体发炎吃什么药? | 扁桃体发炎应该吃什么药?
感冒了能跑步吗? | 感冒的时候可以跑步吗?
租房合同怎么解除? | 如何解除租房合同?
怎么给猫剪指甲? | 给猫剪指甲怎么剪?
火星上有水吗? | 火星有没有水?
被狗咬了怎么办? | 被狗咬了该怎么处理?
绿萝怎么浇水? | 绿萝应该如何浇水?
年假可以折现吗? | 年假能换成钱吗?
守门员可以手抛球过半场吗? | 守门员能用手把球抛过半场吗?
"""
