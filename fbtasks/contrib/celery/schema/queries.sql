-- Named queries of Celery over the database: see those of the core.

-- name: msg_bindings
SELECT Q.NAME, X.NAME, B.ROUTING_KEY FROM QUEUE_MSG_BINDING B
    JOIN QUEUE_MSG_QUEUE Q ON Q.ID = B.QUEUE_ID JOIN QUEUE_MSG_EXCHANGE X ON X.ID = B.EXCHANGE_ID

-- name: msg_queues
SELECT NAME FROM QUEUE_MSG_QUEUE WHERE NOT CONTROL ORDER BY NAME

-- name: msg_lengths
-- How many messages of a queue are ready, withheld, claimed, and came back too often, each counted up to a number, and
-- how many processes consume it. In the order of the index, which is read no further than that.
SELECT Q.NAME,
        (SELECT COUNT(*) FROM (SELECT FIRST (?) 1 AS ONE FROM QUEUE_MSG
            WHERE STATE = 0 AND QUEUE_ID = Q.ID ORDER BY STATE, QUEUE_ID, SORT_KEY)),
        (SELECT COUNT(*) FROM (SELECT FIRST (?) 1 AS ONE FROM QUEUE_MSG
            WHERE STATE = 1 AND QUEUE_ID = Q.ID ORDER BY STATE, QUEUE_ID, SORT_KEY)),
        (SELECT COUNT(*) FROM (SELECT FIRST (?) 1 AS ONE FROM QUEUE_MSG
            WHERE STATE = 2 AND QUEUE_ID = Q.ID ORDER BY STATE, QUEUE_ID, SORT_KEY)),
        (SELECT COUNT(*) FROM (SELECT FIRST (?) 1 AS ONE FROM QUEUE_MSG
            WHERE STATE = 3 AND QUEUE_ID = Q.ID ORDER BY STATE, QUEUE_ID, SORT_KEY)),
        (SELECT COUNT(*) FROM QUEUE_MSG_USE WHERE QUEUE_ID = Q.ID)
    FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = ?

-- name: msg_consumers
-- Some of the processes that consume a queue, and how many of its messages each has claimed, counted up to a number.
SELECT P.HOST, P.PID, P.START_TIME, P.HEARTBEAT_TIME, P.LEASE_UNTIL > QUEUE_NOW(),
        (SELECT COUNT(*) FROM (
            SELECT FIRST (?) ID FROM QUEUE_MSG WHERE STATE = 2 AND QUEUE_ID = Q.ID AND SORT_KEY = P.ID))
    FROM QUEUE_MSG_QUEUE Q JOIN QUEUE_MSG_USE U ON U.QUEUE_ID = Q.ID JOIN QUEUE_PROCESS P ON P.ID = U.CONSUMER_ID
    WHERE Q.NAME = ? ORDER BY P.ID ROWS ?

-- name: msg_exchanges
SELECT NAME FROM QUEUE_MSG_EXCHANGE ORDER BY NAME

-- name: msg_publish
SELECT ROUTED, CURRENT_TRANSACTION FROM FBTASKS_CELERY_API.PUBLISH(?, ?, ?, ?, ?, ?, ?, ?)

-- name: msg_body
SELECT DATA FROM QUEUE_MSG_BODY WHERE ID = ?

-- name: msg_withheld
SELECT FIRST ? M.START_TIME, M.ID, M.PRIORITY, M.REDELIVERED, M.EXCHANGE, M.ROUTING_KEY,
    COALESCE(CAST(M.MESSAGE AS QUEUE_BINARY), D.DATA)
    FROM QUEUE_MSG M LEFT JOIN QUEUE_MSG_BODY D ON D.ID = M.ID WHERE M.STATE = 1 AND M.QUEUE_ID = ?
    ORDER BY M.STATE, M.QUEUE_ID, M.SORT_KEY

-- name: unfinished_celery
SELECT TRIM('message'), COUNT(*) FROM QUEUE_MSG
