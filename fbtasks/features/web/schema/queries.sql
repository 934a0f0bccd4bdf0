-- Named queries of the dashboard: see those of the core. What they are limited to follows them.

-- name: minutes
SELECT MIN(AT_TIME), MIN(QUEUE), MIN(NAME), SUM(SUCCEEDED), SUM(FAILED), SUM(CANCELLED), SUM(RETRIED), SUM(RUN_0),
        SUM(RUN_1), SUM(RUN_2), SUM(RUN_3), SUM(RUN_4), SUM(RUN_5), SUM(RUN_6), SUM(RUN_7), SUM(RUN_8), SUM(RUN_9),
        SUM(RUN_10), SUM(RUN_11), SUM(WAIT_0), SUM(WAIT_1), SUM(WAIT_2), SUM(WAIT_3), SUM(WAIT_4), SUM(WAIT_5),
        SUM(WAIT_6), SUM(WAIT_7), SUM(WAIT_8), SUM(WAIT_9), SUM(WAIT_10), SUM(WAIT_11)
    FROM QUEUE_MINUTE WHERE AT_TIME >= ? AND AT_TIME < ?

-- name: sparks
-- What has ended in each queue between two moments, of which the first is at most four hours ago, by three minutes.
SELECT QUEUE, MIN(AT_TIME), SUM(SUCCEEDED), SUM(FAILED) FROM QUEUE_MINUTE
    WHERE AT_TIME >= ? AND AT_TIME < ? AND NAME = '' AND QUEUE <> ''
    GROUP BY QUEUE, DATEDIFF(SECOND FROM TIMESTAMP '2000-01-01 00:00:00' TO AT_TIME) / 180

-- name: depths
SELECT AT_TIME, MAX(READY), MAX(SCHEDULED), MAX(HELD), MAX(RUNNING), MAX(BUSY), MAX(SLOTS) FROM QUEUE_DEPTH
    WHERE QUEUE = ? AND AT_TIME >= ? AND AT_TIME < ? GROUP BY 1 ORDER BY 1

-- name: versions
SELECT FIRST (?) AT_TIME, VERSIONS FROM QUEUE_VERSION WHERE QUEUE = ?
    ORDER BY QUEUE DESC, AT_TIME DESC, WRITER DESC

-- name: depth_is_noted
-- Whether a worker has noted the depths of this minute.
SELECT COUNT(*) FROM (SELECT FIRST 1 SPAN FROM QUEUE_DEPTH WHERE SPAN = 60
    AND AT_TIME > DATEADD(-1 MINUTE TO QUEUE_NOW()))

-- name: demo_minutes
-- Of a throw-away database, in which no worker writes: moves what was written just now to a minute of the past.
UPDATE QUEUE_MINUTE SET SPAN = 60, AT_TIME = ? WHERE SPAN = 10

-- name: demo_depths
UPDATE QUEUE_DEPTH SET AT_TIME = ?
    WHERE SPAN = 60 AND AT_TIME > DATEADD(-2 MINUTE TO QUEUE_NOW())

-- name: demo_versions
UPDATE QUEUE_VERSION SET AT_TIME = ? WHERE AT_TIME > DATEADD(-2 MINUTE TO QUEUE_NOW())

-- name: demo_counters
INSERT INTO QUEUE_STAT (HOUR_TIME, QUEUE, WORKER_ID, SLOT, SUCCEEDED, FAILED, RETRIED, ELAPSED_MS)
    SELECT DATEADD(DATEDIFF(HOUR FROM TIMESTAMP '2000-01-01 00:00:00' TO AT_TIME)
            HOUR TO TIMESTAMP '2000-01-01 00:00:00'), QUEUE, 0, 0, SUM(SUCCEEDED), SUM(FAILED), SUM(RETRIED),
            SUM(ELAPSED_MS)
        FROM QUEUE_MINUTE WHERE NAME = '' AND QUEUE <> '' GROUP BY 1, 2

-- name: failures
-- Of the newest failures those of a name and a queue (NULL: of any).
SELECT FIRST (?) ID, NAME, QUEUE, ERROR_TYPE, CAST(SUBSTRING(ERROR_MSG FROM 1 FOR 300) AS QUEUE_MESSAGE), FINISH_TIME,
        WORKER
    FROM (SELECT FIRST (?) ID, NAME, QUEUE, ERROR_TYPE, ERROR_MSG, FINISH_TIME, WORKER FROM QUEUE_HISTORY
        WHERE STATE = 11 ORDER BY STATE DESC, FINISH_TIME DESC, ID DESC)
    WHERE NAME = COALESCE(CAST(? AS QUEUE_TEXT), NAME) AND QUEUE = COALESCE(CAST(? AS QUEUE_NAME), QUEUE)

-- name: tries
-- By their times: a worker notes its tries some seconds later, and another one may have noted the next before.
SELECT FIRST 100 TRY_NO, WORKER, START_TIME, END_TIME, KIND, ERROR_TYPE, ERROR_MSG, TRACEBACK FROM QUEUE_TRY
    WHERE TASK_ID = ? ORDER BY END_TIME DESC, ID DESC

-- name: audit
SELECT FIRST (?) ID, AT_TIME, WHO, LOGIN, ACTION, WHAT, SAID FROM QUEUE_AUDIT WHERE ID < ? ORDER BY ID DESC

-- name: due_at
-- How many tasks are due at one moment, counted up to a bound.
SELECT COUNT(*) FROM (SELECT FIRST (?) ID FROM QUEUE_TASK WHERE DUE_TIME = ?)
