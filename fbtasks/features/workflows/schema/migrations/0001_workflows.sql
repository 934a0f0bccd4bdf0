-- Tables of workflows: see packages/workflows.sql.
SET TERM ^ ;

-- What follows what. KIND: 0 TO_ID is given the result of FROM_ID; 1 it is not; 2 it runs when FROM_ID has failed,
-- and is told why; 3 it runs then, and is not told.
CREATE TABLE QUEUE_LINK (
    FROM_ID BIGINT NOT NULL,
    TO_ID BIGINT NOT NULL,
    KIND SMALLINT NOT NULL CHECK (KIND IN (0, 1, 2, 3)),
    -- Of one that has run because of a failure: the task that had failed.
    CAUSE_ID BIGINT,
    CONSTRAINT QUEUE_LINK_FROM PRIMARY KEY (FROM_ID, TO_ID)
)^
CREATE INDEX QUEUE_LINK_TO ON QUEUE_LINK (TO_ID)^

-- Groups that something follows.
CREATE TABLE QUEUE_GROUP (
    ID BIGINT NOT NULL PRIMARY KEY,
    -- 0: some have not ended; 1: what follows has been made ready; 2: it has failed, with its first member.
    STATE SMALLINT DEFAULT 0 NOT NULL CHECK (STATE IN (0, 1, 2)),
    -- 1 when what follows is given the errors of members that fail.
    COLLECTS QUEUE_FLAG,
    -- Whose workers are to look at it when two members have ended at once.
    QUEUE QUEUE_NAME NOT NULL
)^

-- The members of groups. DONE: 0 it has not ended, 1 it has succeeded, 2 it has failed or was cancelled.
CREATE TABLE QUEUE_NODE (
    GROUP_ID BIGINT NOT NULL,
    NUMBER INTEGER NOT NULL,
    NODE_ID BIGINT NOT NULL,
    DONE SMALLINT DEFAULT 0 NOT NULL CHECK (DONE IN (0, 1, 2)),
    CONSTRAINT QUEUE_NODE_ID PRIMARY KEY (NODE_ID)
)^
-- Descending: members end more or less in their order, and what an old transaction keeps of those is not read before
-- the last one that has not ended.
CREATE DESCENDING INDEX QUEUE_NODE_GROUP ON QUEUE_NODE (GROUP_ID, DONE, NUMBER)^

-- Groups that were saved, so that their results are found by the id of the group.
CREATE TABLE QUEUE_GROUP_SAVED (
    ID VARCHAR(100) CHARACTER SET UTF8 NOT NULL PRIMARY KEY COLLATE UTF8,
    EXPIRE_TIME TIMESTAMP NOT NULL,
    -- The ids of the members, in JSON.
    MEMBERS QUEUE_BINARY NOT NULL
)^
CREATE INDEX QUEUE_GROUP_SAVED_EXPIRE ON QUEUE_GROUP_SAVED (EXPIRE_TIME)^

-- Nodes that one transaction has still to look at: those that ended by the end of another one, or are to be put back.
CREATE GLOBAL TEMPORARY TABLE QUEUE_NODE_NEWS (
    NO_ BIGINT NOT NULL PRIMARY KEY,
    NODE_ID BIGINT NOT NULL,
    DONE SMALLINT NOT NULL
) ON COMMIT DELETE ROWS^
CREATE INDEX QUEUE_NODE_NEWS_ID ON QUEUE_NODE_NEWS (NODE_ID)^

COMMIT^

-- The notes of groups have the owner 0, and this is how far they have been read.
INSERT INTO QUEUE_DISPATCH (SUBSCRIPTION_ID) VALUES (0)^
INSERT INTO QUEUE_COLLECTED (TABLE_NAME) VALUES ('QUEUE_LINK')^

SET TERM ; ^
