"""Counting the words of files, each result written in the transaction that also finishes its task."""

import re
from pathlib import Path

from fbtasks import FBTasks

app = FBTasks("words")


def count_words(path: str) -> int:
    return len(re.findall(rb"\w+", Path(path).read_bytes()))


@app.task(bind=True, transactional=True, ignore_result=True)
def count(self, path: str) -> None:
    cursor = self.connection.cursor()
    cursor.execute("INSERT INTO WORD_COUNT (PATH, WORDS) VALUES (?, ?)", (path, count_words(path)))
    cursor.close()
