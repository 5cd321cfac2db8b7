"""The Lua scripts of L2 (C1, C2): each is one atomic step on keys of one tenant, so they also run on a cluster."""

# KEYS: one per bucket rank (shallow first), the prompt's statistics, then index sets.
# ARGV: ranks, rank, value, ttl ms, budget, depth, latency ms or "", index member, expires, now, fence or "",
# statistics ttl ms
PUT = """
local ranks, rank = tonumber(ARGV[1]), tonumber(ARGV[2]) + 1
local stats = KEYS[ranks + 1]
if ARGV[11] ~= '' then
  local fence = redis.call('HGET', stats, 'fence')
  if fence and tonumber(fence) > tonumber(ARGV[11]) then return 0 end
end
local old = redis.call('GET', KEYS[rank])
local budget = old and string.match(old, '^b([%d.]+) ')
if budget and tonumber(budget) > tonumber(ARGV[5]) then return 0 end
redis.call('SET', KEYS[rank], ARGV[3], 'PX', ARGV[4])
for i = 1, rank - 1 do redis.call('DEL', KEYS[i]) end
for i = ranks + 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', ARGV[10])
  redis.call('ZADD', KEYS[i], ARGV[9], ARGV[8])
  if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
end
local depth = tonumber(ARGV[6])
local seen = redis.call('HMGET', stats, 'min_depth', 'max_depth', 'avg_latency', 'timed', 'count')
if not seen[1] or depth < tonumber(seen[1]) then redis.call('HSET', stats, 'min_depth', ARGV[6]) end
if not seen[2] or depth > tonumber(seen[2]) then redis.call('HSET', stats, 'max_depth', ARGV[6]) end
redis.call('HINCRBY', stats, 'count', 1)
if ARGV[7] ~= '' then
  local n = tonumber(seen[4] or '0')
  local mean = (tonumber(seen[3] or '0') * n + tonumber(ARGV[7])) / (n + 1)
  redis.call('HSET', stats, 'avg_latency', string.format('%.6g', mean), 'timed', n + 1)
end
redis.call('PEXPIRE', stats, ARGV[12])
return 1
"""

# KEYS: the entry. ARGV: text that only the meant entry contains.
DROP_ONE = """
local value = redis.call('GET', KEYS[1])
if value and string.find(value, ARGV[1], 1, true) then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS: lease, statistics. ARGV: token, lease ms, statistics ttl ms. Returns the fencing number, or 0 when taken.
LEASE = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
local fence = redis.call('HINCRBY', KEYS[2], 'fence', 1)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return fence
"""

# KEYS: lease. ARGV: token, lease ms.
PROLONG = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""

# KEYS: lease. ARGV: token.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
