-- Named queries of logs: see those of the core.

-- name: log_count
SELECT COUNT(DISTINCT CLAIM_ID), SUM(LINES) FROM QUEUE_LOG WHERE TASK_ID = ?

-- name: log_rows
-- The last rows of a task, or of a try of it.
SELECT ID, CLAIM_ID, TRY_NO, IS_TAIL, LEFT_OUT, DATA FROM QUEUE_LOG
    WHERE TASK_ID = ? AND TRY_NO BETWEEN ? AND ? ORDER BY ID DESC ROWS ?

-- name: log_tasks
-- Tasks of which lines are kept, those with the highest numbers first, below a number. What is kept of one is added up
-- for the tasks of the page alone. (With < the engine would read all rows of the task before.)
EXECUTE BLOCK (BEHIND BIGINT = ?, MOST INTEGER = ?)
RETURNS (TASK_ID BIGINT, NAME QUEUE_TEXT, TRIES INTEGER, LINES BIGINT, WRITE_TIME TIMESTAMP)
AS
BEGIN
    TASK_ID = (SELECT FIRST 1 TASK_ID FROM QUEUE_LOG WHERE TASK_ID <= :BEHIND - 1 ORDER BY TASK_ID DESC);
    WHILE (TASK_ID IS NOT NULL AND MOST > 0) DO
    BEGIN
        SELECT COUNT(DISTINCT CLAIM_ID), SUM(LINES), MAX(WRITE_TIME) FROM QUEUE_LOG WHERE TASK_ID = :TASK_ID
            INTO :TRIES, :LINES, :WRITE_TIME;
        NAME = COALESCE((SELECT NAME FROM QUEUE_TASK WHERE ID = :TASK_ID),
            (SELECT NAME FROM QUEUE_HISTORY WHERE ID = :TASK_ID));
        SUSPEND;
        MOST = MOST - 1;
        TASK_ID = (SELECT FIRST 1 TASK_ID FROM QUEUE_LOG WHERE TASK_ID <= :TASK_ID - 1 ORDER BY TASK_ID DESC);
    END
END
