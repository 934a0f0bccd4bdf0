-- Questions for the stacks of running tasks: see packages/stacks.sql.
SET TERM ^ ;

CREATE SEQUENCE QUEUE_STACK_SEQ^
CREATE TABLE QUEUE_STACK (
    ID BIGINT NOT NULL CONSTRAINT QUEUE_STACK_ID PRIMARY KEY,
    -- The task, and the claim by which it ran when it was asked.
    TASK_ID BIGINT NOT NULL,
    CLAIM_ID BIGINT NOT NULL,
    ASK_TIME TIMESTAMP NOT NULL,
    -- NULL: there is none yet.
    ANSWER QUEUE_LONG_TEXT
)^

COMMIT^

SET TERM ; ^
