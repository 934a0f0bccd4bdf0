-- Tables of polled tables: see packages/polls.sql.
SET TERM ^ ;

-- The keys of rows that are tasks now, have failed, or are known by their gate to be done, where the key is not the LANE itself: a row
-- for each column of the key.
CREATE TABLE QUEUE_POLL_KEY (
    SUBSCRIPTION_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    PART SMALLINT NOT NULL,
    -- The value as text, in the bytes of the column's own character set.
    DATA VARCHAR(2000) CHARACTER SET OCTETS NOT NULL,
    CONSTRAINT QUEUE_POLL_KEY_PART PRIMARY KEY (SUBSCRIPTION_ID, LANE, PART)
)^

-- Numbers of a polled sequence, from LANE to LAST_LANE, that were passed and not there: what draws them may be committed later.
CREATE TABLE QUEUE_GAP (
    SUBSCRIPTION_ID INTEGER NOT NULL,
    LANE BIGINT NOT NULL,
    LAST_LANE BIGINT NOT NULL,
    -- A transaction that began after they were found missing: when all before it have ended, they do not come any more.
    NOTED_TX BIGINT
)^
CREATE INDEX QUEUE_GAP_LANE ON QUEUE_GAP (SUBSCRIPTION_ID, LANE)^

-- Polls that fail, until they succeed again.
CREATE TABLE QUEUE_POLL_FAILURE (
    SUBSCRIPTION_ID INTEGER NOT NULL PRIMARY KEY,
    SINCE_TIME TIMESTAMP NOT NULL,
    LAST_TIME TIMESTAMP NOT NULL,
    ERROR_MSG VARCHAR(1000) CHARACTER SET UTF8 NOT NULL COLLATE UTF8
)^

COMMIT^

-- What is known of a poll goes with its subscription.
CREATE OR ALTER TRIGGER QUEUE_POLL_ERASED FOR QUEUE_SUBSCRIPTION ACTIVE AFTER DELETE POSITION 0
SQL SECURITY DEFINER
AS
BEGIN
    IF (OLD.KIND = 'poll') THEN
    BEGIN
        DELETE FROM QUEUE_POLL_KEY K WHERE K.SUBSCRIPTION_ID = OLD.ID;
        DELETE FROM QUEUE_GAP G WHERE G.SUBSCRIPTION_ID = OLD.ID;
        DELETE FROM QUEUE_POLL_FAILURE F WHERE F.SUBSCRIPTION_ID = OLD.ID;
    END
END^

SET TERM ; ^
