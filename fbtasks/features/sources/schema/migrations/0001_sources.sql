-- Tables of the sources of work, without a unique key that a writer chooses: see packages/sources.sql.
SET TERM ^ ;

CREATE SEQUENCE QUEUE_CHANGE_SEQ^
CREATE EXCEPTION QUEUE_BAD_EVENT 'an event cannot be raised like that'^

-- Which tasks come from which table, event or polled table. Written when definitions are applied, and by operators.
CREATE TABLE QUEUE_SUBSCRIPTION (
    ID INTEGER NOT NULL PRIMARY KEY,
    KIND QUEUE_WORD NOT NULL CHECK (KIND IN ('change', 'event', 'poll')),
    APP QUEUE_TEXT NOT NULL,
    -- The task that is called.
    NAME QUEUE_TEXT NOT NULL,
    -- The table, or the event.
    SOURCE QUEUE_TEXT NOT NULL,
    QUEUE QUEUE_NAME NOT NULL,
    PRIORITY_RANK QUEUE_RANK,
    -- In which order: 'key', one task at a time for each lane; 'total', one for all; 'none', one for each change or
    -- batch.
    ORDERING QUEUE_WORD NOT NULL CHECK (ORDERING IN ('key', 'total', 'none')),
    -- The most changes that one task is given.
    MOST INTEGER NOT NULL,
    -- 1 when a lane stays shut after a task that failed, until that is retried or discarded.
    STOPS QUEUE_FLAG,
    -- How long the first change of a task waits for others; with FILLS not longer than until there are MOST.
    AFTER_MS BIGINT DEFAULT 0 NOT NULL,
    FILLS QUEUE_FLAG,
    -- How long after the last one of a lane, and then not longer than AFTER_MS after the first; 0: does not matter.
    QUIET_MS BIGINT DEFAULT 0 NOT NULL,
    -- 'active'; 'paused': changes are kept, and not given out; 'silent': none are noted; 'orphaned': its code is
    -- gone, changes are kept; 'dropped': it goes as soon as no older statement can write for it.
    STATE QUEUE_WORD NOT NULL CHECK (STATE IN ('active', 'paused', 'silent', 'orphaned',
        'dropped')),
    -- What operators want of STATE, whatever the code says: 'paused', 'silent' or NULL.
    HELD QUEUE_WORD CHECK (HELD IN ('paused', 'silent')),
    -- 1 when another one has taken its place: it goes when what it has is done.
    ENDS QUEUE_FLAG,
    -- What the code says, as JSON, with its hash; and which version of it that is.
    DEFINITION QUEUE_LONG_TEXT NOT NULL,
    HASH QUEUE_HASH NOT NULL,
    VERSION INTEGER NOT NULL,
    -- Since when the trigger is as it is, the hash of its source, and that of the text of which it was made: the
    -- engine writes some of it in its own way.
    ACTIVE_TIME TIMESTAMP,
    TRIGGER_HASH QUEUE_HASH,
    TEXT_HASH QUEUE_HASH,
    -- The first of the IDs that were set aside before the trigger was active, for rows that existed already.
    FIRST_ID BIGINT,
    -- Of the handler of an event: which one, and while it is active DIRECT of its row in QUEUE_HANDLER.
    EVENT QUEUE_NAME,
    DIRECT SMALLINT DEFAULT 0 NOT NULL
)^
CREATE INDEX QUEUE_SUBSCRIPTION_EVENT ON QUEUE_SUBSCRIPTION (EVENT)^
CREATE INDEX QUEUE_SUBSCRIPTION_QUEUE ON QUEUE_SUBSCRIPTION (QUEUE, PRIORITY_RANK)^

-- The log of changes: written by triggers, emptied by FBTASKS_SOURCES.FEED. Its key has a number of
-- QUEUE_CHANGE_SEQ: no writer meets another one. One that was taken has the number of its subscription below 0 and a
-- LANE of QUEUE_NOTE_SEQ, and is deleted in another transaction: of a row that is deleted where it stood, an old
-- snapshot keeps the key, and each look at the log would meet it.
CREATE TABLE QUEUE_CHANGE (
    SUBSCRIPTION_ID INTEGER NOT NULL,
    -- 1: it has just come; NULL: it waits behind its lane (QUEUE_GATE). In lane 0 of a total order it
    -- stays 1.
    NEWS SMALLINT DEFAULT 1,
    -- 0, or the key by which changes are ordered: an integer as it is, anything else as a hash. Never
    -- -9223372036854775808, which an index of Firebird has behind 0 (5.0.4).
    LANE BIGINT NOT NULL,
    ID BIGINT NOT NULL,
    RAISE_TIME TIMESTAMP NOT NULL,
    -- A JSON object; one of more than 2000 bytes is in LARGE.
    DATA QUEUE_INLINE,
    LARGE QUEUE_BINARY,
    CONSTRAINT QUEUE_CHANGE_LANE UNIQUE (SUBSCRIPTION_ID, NEWS, LANE, ID)
)^

-- What the raising of an event reads. DIRECT: 0 it goes through the log, which keeps it while the handler is not
-- active; 1 only with an order key; 2 never; -1 it is silent, and the event is neither given to it nor kept for it.
-- KEYED: 1 when those of one order key keep their order; else the log has one lane.
CREATE VIEW QUEUE_HANDLER (EVENT, SUBSCRIPTION_ID, DIRECT, KEYED, NAME, QUEUE, PRIORITY_RANK)
AS
    SELECT EVENT, ID, CASE STATE WHEN 'active' THEN DIRECT WHEN 'silent' THEN -1 ELSE 0 END,
            IIF(ORDERING = 'key', 1, 0), NAME, QUEUE, PRIORITY_RANK
        FROM QUEUE_SUBSCRIPTION WHERE EVENT IS NOT NULL AND ENDS = 0 AND STATE <> 'dropped'^

INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_CHANGE')^

SET TERM ; ^
