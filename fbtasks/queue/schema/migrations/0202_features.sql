-- The features that the database has: those of this distribution, and those of others that have been migrated here.
SET TERM ^ ;

CREATE TABLE QUEUE_FEATURE (
    NAME QUEUE_NAME NOT NULL PRIMARY KEY,
    -- The last of the migrations of its own.
    VERSION INTEGER NOT NULL,
    -- Which hooks (hooks.sql) PACKAGE has procedures for, divided by spaces. FBTASKS_HOOKS is made from these rows,
    -- whatever the process knows that makes it: so apps with different features keep each other's hooks.
    HOOKS VARCHAR(1000) CHARACTER SET ASCII DEFAULT '' NOT NULL,
    -- Of a feature of this distribution without the generation; of another one with its version. NULL: it is being
    -- made.
    PACKAGE QUEUE_NAME
)^

-- What features of other distributions have to say about a task. A worker that lacks one of them parks the task. The
-- rows go with the task, and of one that has failed or was cancelled with its history.
CREATE TABLE QUEUE_EXTRA (
    TASK_ID BIGINT NOT NULL,
    FEATURE QUEUE_NAME NOT NULL,
    DATA VARCHAR(4000) CHARACTER SET OCTETS NOT NULL,
    CONSTRAINT QUEUE_EXTRA_TASK PRIMARY KEY (TASK_ID, FEATURE)
)^

-- What the worker of a task that has not ended needs: the features of its extras, and for inputs the one of its steps.
CREATE VIEW QUEUE_NEED (TASK_ID, FEATURE)
AS
    SELECT E.TASK_ID, E.FEATURE FROM QUEUE_EXTRA E
    UNION ALL
    SELECT T.ID, F.NAME FROM QUEUE_TASK T JOIN QUEUE_FEATURE F ON POSITION('DECIDE' IN F.HOOKS) > 0
        WHERE T.HAS_INPUTS^
COMMIT^

SET TERM ; ^
