-- The lines that tasks have logged: see packages/logs.sql.
SET TERM ^ ;

CREATE SEQUENCE QUEUE_LOG_SEQ^
CREATE TABLE QUEUE_LOG (
    -- In the order in which it was written.
    ID BIGINT NOT NULL CONSTRAINT QUEUE_LOG_ID PRIMARY KEY,
    TASK_ID BIGINT NOT NULL,
    -- The claim, and which try of the task it was, from 1 on.
    CLAIM_ID BIGINT NOT NULL,
    TRY_NO INTEGER NOT NULL,
    WRITE_TIME TIMESTAMP NOT NULL,
    -- 1: the last lines of a try that logged more than is kept, and how many before them are LEFT_OUT.
    IS_TAIL QUEUE_FLAG,
    LEFT_OUT INTEGER NOT NULL,
    LINES INTEGER NOT NULL,
    -- A line is a list in JSON: milliseconds since 1970, level, logger, text. It may go on in the next row.
    DATA QUEUE_MSG_DATA NOT NULL
)^
-- The newest tasks first.
CREATE DESCENDING INDEX QUEUE_LOG_TASK ON QUEUE_LOG (TASK_ID)^

COMMIT^

SET TERM ; ^
