-- A round trip through the script engine that touches what a node needs; changes nothing.
-- Returns now in ms.
redis.call('EXISTS', Q .. ':lease')
return ms
