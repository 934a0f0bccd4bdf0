-- What tasks say of themselves while they run. A row belongs to one claim, and says nothing any more when that has ended: nothing has
-- to be done then, and maintenance deletes it. At the end: how the room of deleted rows, in the tables of all files, is used again.
SET TERM ^ ;

CREATE TABLE QUEUE_PROGRESS (
    ID BIGINT NOT NULL CONSTRAINT QUEUE_PROGRESS_TASK PRIMARY KEY,
    CLAIM_ID BIGINT NOT NULL,
    WORD VARCHAR(50) CHARACTER SET UTF8 NOT NULL COLLATE UTF8,
    -- JSON
    META VARCHAR(8000) CHARACTER SET OCTETS NOT NULL,
    CHANGE_TIME TIMESTAMP NOT NULL
)^

COMMIT^

SET TERM ; ^
