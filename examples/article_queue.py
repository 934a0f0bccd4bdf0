"""The article's queue: tasks of 10 to 40 ms, one duration in four raising an error."""

import time

from fbtasks import FBTasks

app = FBTasks("article")


@app.task(max_retries=0)
def work(milliseconds: int) -> int:
    time.sleep(milliseconds / 1000)
    if milliseconds == 40:
        raise RuntimeError("Some error")
    return milliseconds
