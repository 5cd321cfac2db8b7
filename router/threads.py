"""A blocking iterator, consumed from an event loop: runs in a thread, stops when the consumer leaves."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_DONE = object()


async def iterate(start: Callable[[threading.Event], Iterator[T]], *, ahead: int = 64) -> AsyncIterator[T]:
    """The items of `start(cancel)`, made in a thread; at most `ahead` wait unread (back-pressure).

    `cancel` is set when the consumer stops early or is cancelled. Errors of the iterator are raised here.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[object] = asyncio.Queue()
    room = threading.Semaphore(ahead)
    cancel = threading.Event()
    failure: list[BaseException] = []

    def put(item: object) -> None:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:  # the loop has closed: nobody listens any more
            cancel.set()

    def work() -> None:
        try:
            for item in start(cancel):
                while not room.acquire(timeout=0.1):
                    if cancel.is_set():
                        return
                put(item)
        except BaseException as error:
            failure.append(error)
        finally:
            put(_DONE)

    worker = threading.Thread(target=work, name="shoal-stream", daemon=True)
    worker.start()
    item: object = None
    try:
        while (item := await queue.get()) is not _DONE:
            room.release()
            yield item  # type: ignore[misc]
        if failure:
            raise failure[0]
    finally:
        cancel.set()
        while item is not _DONE:
            item = await queue.get()
        worker.join()  # its last act was to say so
