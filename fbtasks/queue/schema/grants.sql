-- What each role may do. A package is named without its generation: the name stands for all that the database has,
-- and one that it does not have is skipped. Packages are SQL SECURITY DEFINER. What FBTASKS_CORE has is called by
-- other packages alone, and granted to no role: a caller could forge who has enqueued a task, or end one without its
-- claim. So is FBTASKS_HOOKS. Features have a file of their own.

-- For SQL of the application's own.
GRANT EXECUTE ON PACKAGE FBTASKS TO FBTASKS_PRODUCER, FBTASKS_WORKER;
GRANT EXECUTE ON PACKAGE FBTASKS_TASKS TO FBTASKS_PRODUCER, FBTASKS_WORKER, FBTASKS_OPERATOR;

-- To enqueue.
GRANT EXECUTE ON PACKAGE FBTASKS_PRODUCER TO FBTASKS_PRODUCER, FBTASKS_WORKER;

-- To ask after one's own tasks; a worker and an operator after all.
GRANT EXECUTE ON PACKAGE FBTASKS_READER TO FBTASKS_PRODUCER, FBTASKS_WORKER, FBTASKS_OPERATOR;

-- To work.
GRANT EXECUTE ON PACKAGE FBTASKS_WORKER TO FBTASKS_WORKER;

-- What workers do now and then, and operators when they want it.
GRANT EXECUTE ON PACKAGE FBTASKS_UPKEEP TO FBTASKS_WORKER, FBTASKS_OPERATOR;

-- To put right what went wrong.
GRANT EXECUTE ON PACKAGE FBTASKS_OPERATOR TO FBTASKS_OPERATOR;

-- Tables, to read. All ask for the version of the schema, of the features that they use, and the generation of the
-- packages before anything else.
GRANT SELECT ON TABLE QUEUE_SCHEMA, QUEUE_GENERATION, QUEUE_FEATURE
    TO FBTASKS_PRODUCER, FBTASKS_WORKER, FBTASKS_OPERATOR;
GRANT SELECT ON TABLE
    QUEUE_POLICY, QUEUE_PLACE, QUEUE_SHIFT, QUEUE_DISPATCH, QUEUE_GATE, QUEUE_NOTE, QUEUE_RULE, QUEUE_FEEDER,
    QUEUE_HOLD, QUEUE_IDENTITY, QUEUE_TASK, QUEUE_PAYLOAD, QUEUE_PROCESS, QUEUE_CANCEL, QUEUE_REDIRECT, QUEUE_EXTRA,
    QUEUE_NEED, QUEUE_ON_FAILURE
    TO FBTASKS_WORKER, FBTASKS_OPERATOR;
GRANT SELECT ON TABLE QUEUE_TASK_ID, QUEUE_HISTORY, QUEUE_RESULT, QUEUE_STAT TO FBTASKS_OPERATOR;
