-- From where on the line of a lane is read, and lines without the tasks of paused queues.
SET TERM ^ ;

-- Of a limit: none that waits is before this place, SORT_KEY and TASK_ID, but those of which a note has not been read
-- yet. NULL: that is not known. KIND of QUEUE_NOTE, more of them: 'U' as 'T', of a task whose place is before this one;
-- 'Q' QUEUE is not paused any more: tasks in the lanes from LANE to TASK_ID go back into their lines. A note that was
-- read is written once more, as 'W', before it is deleted. SORT_KEY of QUEUE_HOLD: 10000 when the task is out of its
-- line since its queue is paused.
ALTER TABLE QUEUE_GATE ADD LINE_KEY SMALLINT, ADD LINE_ID BIGINT^
COMMIT^

SET TERM ; ^
