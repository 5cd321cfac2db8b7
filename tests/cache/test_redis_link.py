import pytest

from shoal.cache import CacheInputError
from shoal.cache.redis_link import RedisLink, connect


@pytest.mark.parametrize("url", ["localhost:6379", "", "http://localhost", "redis://h:port"])
def test_urls_that_name_no_server(url: str) -> None:
    with pytest.raises(CacheInputError, match="redis_url"):
        RedisLink(url)


def test_tls_by_url() -> None:
    client = connect("rediss://:pw@example.org:6380/2")
    kwargs = client.connection_pool.connection_kwargs
    assert (kwargs["host"], kwargs["port"], kwargs["db"], kwargs["password"]) == ("example.org", 6380, 2, "pw")
    assert client.connection_pool.connection_class.__name__ == "SSLConnection"
    client.close()


def test_sentinel_urls() -> None:
    client = connect("redis+sentinel://user:p%40ss@one:26379,two:26380/main/3")
    pool = client.connection_pool
    assert pool.service_name == "main"
    assert [
        (s.connection_pool.connection_kwargs["host"], s.connection_pool.connection_kwargs["port"])
        for s in pool.sentinel_manager.sentinels
    ] == [("one", 26379), ("two", 26380)]
    assert (pool.connection_kwargs["password"], pool.connection_kwargs["db"]) == ("p@ss", 3)
    client.close()
