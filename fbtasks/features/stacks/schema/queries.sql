-- Named queries of stacks: see those of the core.

-- name: stack_answer
-- The answer to a question, and whether the task still runs.
SELECT S.ANSWER, IIF(EXISTS(SELECT 1 FROM QUEUE_TASK T
        WHERE T.ID = S.TASK_ID AND T.CLAIM_ID = S.CLAIM_ID AND T.STATE = 2), 1, 0)
    FROM QUEUE_STACK S WHERE S.ID = ?
