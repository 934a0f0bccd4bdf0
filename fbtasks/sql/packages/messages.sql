-- Messages of the kombu transport and results of Celery; how they are kept is said in migrations/0101_messages.sql.
SET TERM ^ ;

PACKAGE FBTASKS_CELERY^

-- Notes that CHANGE more messages are ready in a queue with a MAX_LENGTH. Called by the trigger of QUEUE_MSG.
PROCEDURE COUNT_MESSAGES (QUEUE_ID BIGINT, CHANGE BIGINT)
AS
    DECLARE NO_ BIGINT;
    DECLARE MANY BIGINT;
    DECLARE FREE CURSOR FOR (
        SELECT C.NO_, C.MANY FROM QUEUE_MSG_COUNT C WHERE C.QUEUE_ID = :QUEUE_ID FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    UPDATE QUEUE_MSG_COUNT C SET MANY = MANY + :CHANGE
        WHERE C.QUEUE_ID = :QUEUE_ID AND C.TRANSACTION_ID = CURRENT_TRANSACTION;
    IF (ROW_COUNT = 0) THEN
    BEGIN
        OPEN FREE;
        FETCH FREE INTO :NO_, :MANY;
        IF (ROW_COUNT = 0) THEN
            INSERT INTO QUEUE_MSG_COUNT (QUEUE_ID, NO_, TRANSACTION_ID, MANY)
            VALUES (:QUEUE_ID, NEXT VALUE FOR QUEUE_MSG_SEQ, CURRENT_TRANSACTION, :CHANGE);
        ELSE
        BEGIN
            UPDATE QUEUE_MSG_COUNT C SET TRANSACTION_ID = CURRENT_TRANSACTION, MANY = :MANY + :CHANGE
                WHERE C.QUEUE_ID = :QUEUE_ID AND C.NO_ = :NO_;
            IF (RAND() < 0.1) THEN  -- now and then two become one: there are no more than transactions at once
            BEGIN
                FETCH FREE INTO :NO_, :MANY;
                IF (ROW_COUNT > 0) THEN
                BEGIN
                    DELETE FROM QUEUE_MSG_COUNT C WHERE C.QUEUE_ID = :QUEUE_ID AND C.NO_ = :NO_;
                    UPDATE QUEUE_MSG_COUNT C SET MANY = MANY + :MANY
                        WHERE C.QUEUE_ID = :QUEUE_ID AND C.TRANSACTION_ID = CURRENT_TRANSACTION;
                END
            END
        END
        CLOSE FREE;
    END
END^

-- Whether the caller may change what others declared, and reach Celery's remote control and events: workers,
-- operators, the owner of this function and administrators. A producer declares what is missing and confirms what is
-- there.
FUNCTION RULES
RETURNS BOOLEAN
AS
BEGIN
    RETURN RDB$ROLE_IN_USE('FBTASKS_WORKER')
        OR RDB$ROLE_IN_USE('FBTASKS_OPERATOR')
        OR CURRENT_USER = RDB$GET_CONTEXT('SYSTEM', 'EFFECTIVE_USER')
        OR RDB$SYSTEM_PRIVILEGE(ACCESS_ANY_OBJECT_IN_DATABASE);
END^

-- Whether a name is that of an exchange or a queue of Celery's remote control (celery.pidbox, reply.celery.pidbox and
-- the queues bound to them) or of its events. Names that differ in trailing spaces are equal.
FUNCTION IS_CONTROL (NAME QUEUE_MSG_NAME)
RETURNS BOOLEAN
AS
BEGIN
    NAME = TRIM(TRAILING FROM NAME);
    RETURN NAME LIKE '%.pidbox' OR NAME = 'celeryev' OR NAME STARTING WITH 'celeryev.';
END^

-- The binding key of a topic exchange as SIMILAR TO takes it, with ESCAPE '\'; NULL: everything matches. Words are
-- separated by dots; * stands for one word, # for any number of them, none included, as in AMQP.
FUNCTION PATTERN (ROUTING_KEY QUEUE_MSG_NAME)
RETURNS VARCHAR(2000) CHARACTER SET UTF8 COLLATE UTF8
AS
    DECLARE PATTERN VARCHAR(2000) CHARACTER SET UTF8 COLLATE UTF8 = '';
    DECLARE REST VARCHAR(251) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE WORD QUEUE_MSG_NAME;
    DECLARE LETTER VARCHAR(1) CHARACTER SET UTF8 COLLATE UTF8;
    DECLARE AT_CHARACTER INTEGER;
    DECLARE LENGTH INTEGER;
    DECLARE IS_ANY BOOLEAN = TRUE;
    DECLARE WAS_ANY BOOLEAN = FALSE;
    DECLARE FOLLOWS BOOLEAN = FALSE;
BEGIN
    REST = ROUTING_KEY || '.';
    WHILE (CHAR_LENGTH(REST) > 0) DO
    BEGIN
        LENGTH = POSITION('.' IN REST) - 1;
        WORD = SUBSTRING(REST FROM 1 FOR LENGTH);
        REST = SUBSTRING(REST FROM LENGTH + 2);
        IF (LENGTH = 1 AND WORD = '#') THEN
        BEGIN
            -- With words before it, each of its own brings its dot along; at the front each has one behind it. Two that
            -- follow each other are one.
            IF (NOT WAS_ANY) THEN
                PATTERN = PATTERN || IIF(FOLLOWS, '(.[^.]*)*', '([^.]*.)*');
            WAS_ANY = TRUE;
            CONTINUE;
        END
        WAS_ANY = FALSE;
        IS_ANY = FALSE;
        IF (FOLLOWS) THEN
            PATTERN = PATTERN || '.';
        FOLLOWS = TRUE;
        IF (LENGTH = 1 AND WORD = '*') THEN
        BEGIN
            PATTERN = PATTERN || '[^.]*';
            CONTINUE;
        END
        AT_CHARACTER = 1;
        WHILE (AT_CHARACTER <= LENGTH) DO
        BEGIN
            LETTER = SUBSTRING(WORD FROM AT_CHARACTER FOR 1);
            IF (POSITION(LETTER IN '[]()|^-+*%_?{}\') > 0) THEN
                PATTERN = PATTERN || '\';
            PATTERN = PATTERN || LETTER;
            AT_CHARACTER = AT_CHARACTER + 1;
        END
    END
    RETURN IIF(IS_ANY, NULL, PATTERN);
END^

-- DONE is 0 when it is not there, or with IF_UNUSED has bindings.
PROCEDURE DROP_EXCHANGE (NAME QUEUE_MSG_NAME, IF_UNUSED BOOLEAN)
RETURNS (DONE SMALLINT)
AS
    DECLARE ID BIGINT;
BEGIN
    DONE = 0;
    SELECT X.ID FROM QUEUE_MSG_EXCHANGE X WHERE X.NAME = :NAME INTO :ID;
    IF (ID IS NOT NULL AND NOT (IF_UNUSED AND EXISTS(SELECT 1 FROM QUEUE_MSG_BINDING B WHERE B.EXCHANGE_ID = :ID
        ORDER BY B.EXCHANGE_ID))) THEN
    BEGIN
        DELETE FROM QUEUE_MSG_BINDING B WHERE B.EXCHANGE_ID = :ID;
        DELETE FROM QUEUE_MSG_EXCHANGE X WHERE X.ID = :ID;
        DONE = 1;
    END
    SUSPEND;
END^

-- Deletes a queue with its bindings and messages, also those that are claimed; an exchange that goes with its last
-- binding goes. Called by other procedures.
PRIVATE PROCEDURE ERASE (QUEUE_ID BIGINT)
AS
    DECLARE EXCHANGE_ID BIGINT;
    DECLARE ID BIGINT;
BEGIN
    DELETE FROM QUEUE_MSG_QUEUE Q WHERE Q.ID = :QUEUE_ID;
    FOR SELECT DISTINCT B.EXCHANGE_ID FROM QUEUE_MSG_BINDING B WHERE B.QUEUE_ID = :QUEUE_ID INTO :EXCHANGE_ID DO
    BEGIN
        DELETE FROM QUEUE_MSG_BINDING B WHERE B.QUEUE_ID = :QUEUE_ID AND B.EXCHANGE_ID = :EXCHANGE_ID;
        DELETE FROM QUEUE_MSG_EXCHANGE X WHERE X.ID = :EXCHANGE_ID AND X.AUTO_DELETE
            AND NOT EXISTS(SELECT 1 FROM QUEUE_MSG_BINDING B WHERE B.EXCHANGE_ID = :EXCHANGE_ID ORDER BY B.EXCHANGE_ID);
    END
    DELETE FROM QUEUE_MSG_USE U WHERE U.QUEUE_ID = :QUEUE_ID;
    -- One by one: IN (SELECT ...) reads every body there is.
    FOR SELECT M.ID FROM QUEUE_MSG M WHERE M.STATE IN (0, 1, 2, 3) AND M.QUEUE_ID = :QUEUE_ID AND M.MESSAGE IS NULL
        INTO :ID DO
        DELETE FROM QUEUE_MSG_BODY D WHERE D.ID = :ID;
    DELETE FROM QUEUE_MSG M WHERE M.STATE IN (0, 1, 2, 3) AND M.QUEUE_ID = :QUEUE_ID;
    DELETE FROM QUEUE_MSG_COUNT C WHERE C.QUEUE_ID = :QUEUE_ID;
END^

-- Whether a queue has a message in this state: the order of the index leads to the first.
PRIVATE FUNCTION HAS (QUEUE_ID BIGINT, STATE SMALLINT)
RETURNS BOOLEAN
AS
BEGIN
    RETURN EXISTS(SELECT 1 FROM QUEUE_MSG M WHERE M.STATE = :STATE AND M.QUEUE_ID = :QUEUE_ID
        ORDER BY M.STATE, M.QUEUE_ID);
END^

-- DONE is 0 when there is no such queue, or a condition does not hold. The caller's own consumers do not count as use.
PROCEDURE DROP_QUEUE (
    NAME QUEUE_MSG_NAME, IF_UNUSED BOOLEAN, IF_EMPTY BOOLEAN, CONSUMER_ID BIGINT)
RETURNS (DONE SMALLINT)
AS
    DECLARE ID BIGINT;
BEGIN
    DONE = 0;
    SELECT Q.ID FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :NAME INTO :ID;
    IF (ID IS NOT NULL
            AND NOT (IF_UNUSED AND EXISTS(SELECT 1 FROM QUEUE_MSG_USE U WHERE U.QUEUE_ID = :ID
                AND U.CONSUMER_ID <> COALESCE(:CONSUMER_ID, -1)))
            AND NOT (IF_EMPTY AND (HAS(ID, 0) OR HAS(ID, 1) OR HAS(ID, 3)))) THEN
    BEGIN
        EXECUTE PROCEDURE ERASE(ID);
        DONE = 1;
    END
    SUSPEND;
END^

PROCEDURE UNBIND (
    QUEUE QUEUE_MSG_NAME, EXCHANGE QUEUE_MSG_NAME,
    ROUTING_KEY QUEUE_MSG_NAME)
RETURNS (DONE INTEGER)
AS
    DECLARE QUEUE_ID BIGINT;
    DECLARE EXCHANGE_ID BIGINT;
BEGIN
    SELECT Q.ID FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :QUEUE INTO :QUEUE_ID;
    SELECT X.ID FROM QUEUE_MSG_EXCHANGE X WHERE X.NAME = :EXCHANGE INTO :EXCHANGE_ID;
    DELETE FROM QUEUE_MSG_BINDING B WHERE B.QUEUE_ID = :QUEUE_ID AND B.EXCHANGE_ID = :EXCHANGE_ID
        AND B.ROUTING_KEY = :ROUTING_KEY;
    DONE = ROW_COUNT;
    DELETE FROM QUEUE_MSG_EXCHANGE X WHERE X.ID = :EXCHANGE_ID AND X.AUTO_DELETE
        AND NOT EXISTS(SELECT 1 FROM QUEUE_MSG_BINDING B WHERE B.EXCHANGE_ID = :EXCHANGE_ID ORDER BY B.EXCHANGE_ID);
    SUSPEND;
END^

-- The queues that a message goes to, each once. KNOWN is 0, in a single row, for an exchange that is not there, and
-- 2, in a row before the others, for one of Celery's remote control or events.
PROCEDURE ROUTE (
    EXCHANGE QUEUE_MSG_NAME, ROUTING_KEY QUEUE_MSG_NAME)
RETURNS (KNOWN SMALLINT, QUEUE_ID BIGINT)
AS
    DECLARE EXCHANGE_ID BIGINT;
    DECLARE KIND VARCHAR(10) CHARACTER SET ASCII;
    DECLARE CONTROL BOOLEAN;
BEGIN
    KNOWN = 1;
    IF (EXCHANGE = '') THEN
    BEGIN
        SELECT Q.ID FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :ROUTING_KEY INTO :QUEUE_ID;
        IF (QUEUE_ID IS NOT NULL) THEN
            SUSPEND;
        EXIT;
    END
    SELECT X.ID, X.KIND, X.CONTROL FROM QUEUE_MSG_EXCHANGE X WHERE X.NAME = :EXCHANGE
        INTO :EXCHANGE_ID, :KIND, :CONTROL;
    IF (CONTROL) THEN
    BEGIN
        KNOWN = 2;
        SUSPEND;
        KNOWN = 1;
    END
    IF (EXCHANGE_ID IS NULL) THEN
    BEGIN
        KNOWN = 0;
        SUSPEND;
    END
    ELSE IF (KIND = 'direct') THEN
        FOR SELECT DISTINCT B.QUEUE_ID FROM QUEUE_MSG_BINDING B
            WHERE B.EXCHANGE_ID = :EXCHANGE_ID AND B.KEY_HASH = HASH(:ROUTING_KEY) AND B.ROUTING_KEY = :ROUTING_KEY
            INTO :QUEUE_ID DO
            SUSPEND;
    ELSE IF (KIND = 'fanout') THEN
        FOR SELECT DISTINCT B.QUEUE_ID FROM QUEUE_MSG_BINDING B WHERE B.EXCHANGE_ID = :EXCHANGE_ID INTO :QUEUE_ID DO
            SUSPEND;
    ELSE
        FOR SELECT DISTINCT B.QUEUE_ID FROM QUEUE_MSG_BINDING B WHERE B.EXCHANGE_ID = :EXCHANGE_ID
                AND (B.PATTERN IS NULL OR :ROUTING_KEY SIMILAR TO B.PATTERN ESCAPE '\')
            INTO :QUEUE_ID DO
            SUSPEND;
END^

-- Takes away a message that expired, was rejected, is too many or came back too often, which the caller has locked:
-- it goes to the dead-letter exchange of its queue, where there is one, as a copy for each queue, else nowhere. No
-- dead letter goes to a queue of Celery's remote control: the worker that takes it away may do what its publisher may
-- not. What came back too often (REASON delivery_limit) stays, in STATE 3, where no copy was made.
PRIVATE PROCEDURE DEAD_LETTER (ID BIGINT, REASON VARCHAR(20) CHARACTER SET ASCII)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE QUEUE QUEUE_MSG_NAME;
    DECLARE DEAD_EXCHANGE QUEUE_MSG_NAME;
    DECLARE DEAD_KEY QUEUE_MSG_NAME;
    DECLARE QUEUE_ID BIGINT;
    DECLARE TTL BIGINT;
    DECLARE LIMITED BOOLEAN;
    DECLARE LARGE BOOLEAN;
    DECLARE COPY_ID BIGINT;
BEGIN
    SELECT Q.NAME, Q.DEAD_EXCHANGE, COALESCE(Q.DEAD_ROUTING_KEY, M.ROUTING_KEY), M.MESSAGE IS NULL
        FROM QUEUE_MSG M JOIN QUEUE_MSG_QUEUE Q ON Q.ID = M.QUEUE_ID
        WHERE M.ID = :ID INTO :QUEUE, :DEAD_EXCHANGE, :DEAD_KEY, :LARGE;
    IF (DEAD_EXCHANGE IS NOT NULL) THEN
    BEGIN
        NOW_UTC = QUEUE_NOW();
        FOR SELECT Q.ID, Q.MESSAGE_TTL_MS, Q.MAX_LENGTH IS NOT NULL
            FROM ROUTE(:DEAD_EXCHANGE, :DEAD_KEY) R JOIN QUEUE_MSG_QUEUE Q ON Q.ID = R.QUEUE_ID
            WHERE NOT Q.CONTROL INTO :QUEUE_ID, :TTL, :LIMITED DO
        BEGIN
            COPY_ID = NEXT VALUE FOR QUEUE_MSG_SEQ;
            INSERT INTO QUEUE_MSG (ID, QUEUE_ID, STATE, PRIORITY_RANK, PRIORITY, START_TIME, EXPIRE_TIME, LIMITED,
                EXCHANGE, ROUTING_KEY, DEAD_QUEUE, DEAD_REASON, MESSAGE)
            SELECT :COPY_ID, :QUEUE_ID, 0, 9 - M.PRIORITY, M.PRIORITY, :NOW_UTC,
                DATEADD(:TTL MILLISECOND TO :NOW_UTC), :LIMITED, :DEAD_EXCHANGE, :DEAD_KEY, :QUEUE, :REASON, M.MESSAGE
                FROM QUEUE_MSG M WHERE M.ID = :ID;
            INSERT INTO QUEUE_MSG_BODY (ID, DATA) SELECT :COPY_ID, D.DATA FROM QUEUE_MSG_BODY D WHERE D.ID = :ID;
            POST_EVENT 'fbtasks:message:' || MOD(QUEUE_ID, 14);
        END
    END
    IF (REASON = 'delivery_limit' AND COPY_ID IS NULL) THEN
        UPDATE QUEUE_MSG M SET STATE = 3, CONSUMER_ID = NULL, CLAIM_ID = NULL, DEAD_QUEUE = :QUEUE,
            DEAD_REASON = :REASON
            WHERE M.ID = :ID;
    ELSE
    BEGIN
        IF (LARGE IS DISTINCT FROM FALSE) THEN
            DELETE FROM QUEUE_MSG_BODY D WHERE D.ID = :ID;
        DELETE FROM QUEUE_MSG M WHERE M.ID = :ID;
    END
END^

-- Has a queue hold no more ready messages than MAX_LENGTH: the oldest go, of whatever priority, up to 200 at a time.
-- Called by those that publish.
PROCEDURE TRIM_QUEUE (QUEUE_ID BIGINT, MAX_LENGTH INTEGER)
AS
    DECLARE SURPLUS BIGINT;
    DECLARE RANK BIGINT;
    DECLARE NEXT_RANK BIGINT;
    DECLARE ID BIGINT;
    DECLARE START_TIME TIMESTAMP;
    DECLARE OLDEST_ID BIGINT;
    DECLARE OLDEST_TIME TIMESTAMP;
BEGIN
    SELECT MINVALUE(SUM(C.MANY) - :MAX_LENGTH, 200) FROM QUEUE_MSG_COUNT C WHERE C.QUEUE_ID = :QUEUE_ID INTO :SURPLUS;
    WHILE (SURPLUS > 0) DO
    BEGIN
        OLDEST_ID = NULL;
        OLDEST_TIME = NULL;
        NEXT_RANK = 0;
        WHILE (NEXT_RANK IS NOT NULL) DO
        BEGIN
            RANK = NULL;
            SELECT FIRST 1 M.PRIORITY_RANK, M.START_TIME, M.ID FROM QUEUE_MSG M
                WHERE M.STATE = 0 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK >= :NEXT_RANK
                ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID INTO :RANK, :START_TIME, :ID;
            IF (RANK IS NOT NULL AND (OLDEST_ID IS NULL OR START_TIME < OLDEST_TIME
                    OR (START_TIME = OLDEST_TIME AND ID < OLDEST_ID))) THEN
            BEGIN
                OLDEST_ID = ID;
                OLDEST_TIME = START_TIME;
            END
            NEXT_RANK = RANK + 1;
        END
        IF (OLDEST_ID IS NULL) THEN
            LEAVE;
        EXECUTE PROCEDURE DEAD_LETTER(OLDEST_ID, 'maxlen');
        SURPLUS = SURPLUS - 1;
    END
END^

-- Settles messages, many at once. A record is a letter, 19 digits of the message's number and 19 of its claim: A
-- done, it is deleted (a: with its body); D rejected; R given back after it was delivered, which is counted; U given
-- back unseen. What does not belong to that claim of that consumer is left alone, and counted in STALE.
PROCEDURE SETTLE (CONSUMER_ID BIGINT, ITEMS QUEUE_RECORDS)
RETURNS (STALE INTEGER)
AS
    DECLARE AT_BYTE INTEGER = 1;
    DECLARE KIND CHAR(1) CHARACTER SET OCTETS;
    DECLARE ID BIGINT;
    DECLARE CLAIM_ID BIGINT;
    DECLARE QUEUE_ID BIGINT;
    DECLARE LAST_QUEUE BIGINT = -1;
BEGIN
    STALE = 0;
    WHILE (AT_BYTE <= OCTET_LENGTH(ITEMS)) DO
    BEGIN
        KIND = SUBSTRING(ITEMS FROM AT_BYTE FOR 1);
        ID = CAST(SUBSTRING(ITEMS FROM AT_BYTE + 1 FOR 19) AS BIGINT);
        CLAIM_ID = CAST(SUBSTRING(ITEMS FROM AT_BYTE + 20 FOR 19) AS BIGINT);
        AT_BYTE = AT_BYTE + 39;
        IF (KIND IN ('A', 'a')) THEN
        BEGIN
            DELETE FROM QUEUE_MSG M WHERE M.ID = :ID AND M.CONSUMER_ID = :CONSUMER_ID AND M.CLAIM_ID = :CLAIM_ID;
            IF (ROW_COUNT = 0) THEN
                STALE = STALE + 1;
            ELSE IF (KIND = 'a') THEN
                DELETE FROM QUEUE_MSG_BODY D WHERE D.ID = :ID;
        END
        ELSE IF (KIND = 'D') THEN
        BEGIN
            IF (EXISTS(SELECT 1 FROM QUEUE_MSG M WHERE M.ID = :ID AND M.CONSUMER_ID = :CONSUMER_ID
                    AND M.CLAIM_ID = :CLAIM_ID)) THEN
                EXECUTE PROCEDURE DEAD_LETTER(ID, 'rejected');
            ELSE
                STALE = STALE + 1;
        END
        ELSE
        BEGIN
            QUEUE_ID = NULL;
            UPDATE QUEUE_MSG M SET STATE = 0, CONSUMER_ID = NULL, CLAIM_ID = NULL,
                REDELIVERED = IIF(:KIND = 'R', MINVALUE(REDELIVERED + 1, 32000), REDELIVERED)
                WHERE M.ID = :ID AND M.CONSUMER_ID = :CONSUMER_ID AND M.CLAIM_ID = :CLAIM_ID
                RETURNING QUEUE_ID INTO :QUEUE_ID;
            IF (QUEUE_ID IS NULL) THEN
                STALE = STALE + 1;
            ELSE IF (QUEUE_ID <> LAST_QUEUE) THEN
            BEGIN
                POST_EVENT 'fbtasks:message:' || MOD(QUEUE_ID, 14);
                LAST_QUEUE = QUEUE_ID;
            END
        END
    END
    SUSPEND;
END^

-- Gives back a whole claim whose answer its consumer never got.
PROCEDURE UNCLAIM (CONSUMER_ID BIGINT, CLAIM_ID BIGINT, QUEUE_ID BIGINT)
RETURNS (RELEASED INTEGER)
AS
BEGIN
    UPDATE QUEUE_MSG M SET STATE = 0, CONSUMER_ID = NULL, CLAIM_ID = NULL
        WHERE M.STATE = 2 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK = :CONSUMER_ID AND M.CLAIM_ID = :CLAIM_ID;
    RELEASED = ROW_COUNT;
    IF (RELEASED > 0) THEN
        POST_EVENT 'fbtasks:message:' || MOD(QUEUE_ID, 14);
    SUSPEND;
END^

-- Makes due messages of a queue ready. Called by the claim.
PRIVATE PROCEDURE PROMOTE (QUEUE_ID BIGINT, MOST INTEGER)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE DONE INTEGER = 0;
    DECLARE ID BIGINT;
    DECLARE PRIORITY SMALLINT;
    DECLARE C CURSOR FOR (
        SELECT M.ID, M.PRIORITY FROM QUEUE_MSG M
        WHERE M.STATE = 1 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK = 0 AND M.START_TIME <= :NOW_UTC
        ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID
        FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    NOW_UTC = QUEUE_NOW();
    OPEN C;
    WHILE (1 = 1) DO
    BEGIN
        FETCH C INTO :ID, :PRIORITY;
        IF (ROW_COUNT = 0) THEN
            LEAVE;
        UPDATE QUEUE_MSG M SET STATE = 0, PRIORITY_RANK = 9 - :PRIORITY WHERE M.ID = :ID;
        DONE = DONE + 1;
        IF (DONE >= MOST) THEN
            LEAVE;
    END
    CLOSE C;
END^

-- Settles (see SETTLE) and then claims up to MOST messages of one queue, rank by rank. One row for each 32,000 bytes:
-- records packed as store/messages.py reads them. Expired ones are taken away on the way, but no more than 200:
-- UNSEEN is 1 in the last row when it stopped there, so that there may be more behind them. STALE is -1, and nothing
-- is claimed, when the consumer is not registered. A message that came back more often than the consumer's
-- DELIVERY_LIMIT is taken away (see DEAD_LETTER) and told of with REDELIVERED below 0 and a DEAD_REASON where there
-- is a copy of it. From half the limit on it is claimed alone, so that what it does to its consumers is not counted
-- against its neighbours. MARK, in the last row, is where in the queue a claim of MOST messages ended; AFTER_MARK is
-- the mark of the caller's last claim, from which on its rank is read: see FBTASKS_WORKER.CLAIM, also for why there
-- are two cursors.
PROCEDURE CLAIM (
    CONSUMER_ID BIGINT, CLAIM_ID BIGINT, QUEUE_ID BIGINT, MOST INTEGER, ITEMS QUEUE_RECORDS,
    AFTER_MARK VARCHAR(50) CHARACTER SET ASCII)
RETURNS (STALE INTEGER, PACKED QUEUE_RECORDS, UNSEEN SMALLINT, MARK VARCHAR(50) CHARACTER SET ASCII)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE FOUND INTEGER = 0;
    DECLARE EXPIRED INTEGER = 0;
    DECLARE REGISTERED SMALLINT;
    DECLARE DELIVERY_LIMIT INTEGER;
    DECLARE ITEM VARCHAR(12000) CHARACTER SET OCTETS;
    DECLARE ID BIGINT;
    DECLARE PRIORITY SMALLINT;
    DECLARE START_TIME TIMESTAMP;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE REDELIVERED SMALLINT;
    DECLARE EXCHANGE QUEUE_MSG_NAME;
    DECLARE ROUTING_KEY QUEUE_MSG_NAME;
    DECLARE DEAD_QUEUE QUEUE_MSG_NAME;
    DECLARE DEAD_REASON VARCHAR(20) CHARACTER SET ASCII;
    DECLARE MESSAGE VARCHAR(8000) CHARACTER SET OCTETS;
    DECLARE LOW_RANK SMALLINT;
    DECLARE LOW_ID BIGINT;
    DECLARE RANK SMALLINT;
    DECLARE NEXT_RANK SMALLINT;
    DECLARE MOMENT TIMESTAMP;
    DECLARE AT_MARK SMALLINT;
    DECLARE ENOUGH SMALLINT = 0;
    DECLARE AT_MOMENT CURSOR FOR (
        SELECT M.ID, M.PRIORITY, M.START_TIME, M.EXPIRE_TIME, M.REDELIVERED, M.EXCHANGE, M.ROUTING_KEY, M.DEAD_QUEUE,
            M.DEAD_REASON, M.MESSAGE
        FROM QUEUE_MSG M
        WHERE M.STATE = 0 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK = :RANK AND M.START_TIME = :MOMENT
            AND M.ID > :LOW_ID
        ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID
        FOR UPDATE WITH LOCK SKIP LOCKED);
    DECLARE LATER CURSOR FOR (
        SELECT M.ID, M.PRIORITY, M.START_TIME, M.EXPIRE_TIME, M.REDELIVERED, M.EXCHANGE, M.ROUTING_KEY, M.DEAD_QUEUE,
            M.DEAD_REASON, M.MESSAGE
        FROM QUEUE_MSG M
        WHERE M.STATE = 0 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK = :RANK AND M.START_TIME >= :MOMENT
        ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID
        FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    NOW_UTC = QUEUE_NOW();
    STALE = 0;
    PACKED = '';
    UNSEEN = 0;
    IF (ITEMS <> '') THEN
        EXECUTE PROCEDURE SETTLE(CONSUMER_ID, ITEMS) RETURNING_VALUES STALE;
    SELECT 1, N.DELIVERY_LIMIT FROM QUEUE_PROCESS N WHERE N.ID = :CONSUMER_ID INTO :REGISTERED, :DELIVERY_LIMIT;
    IF (REGISTERED IS NULL) THEN
    BEGIN
        STALE = -1;
        SUSPEND;
        EXIT;
    END
    EXECUTE PROCEDURE PROMOTE(QUEUE_ID, 200);
    LOW_RANK = CAST(SUBSTRING(AFTER_MARK FROM 1 FOR 6) AS SMALLINT);
    LOW_ID = CAST(SUBSTRING(AFTER_MARK FROM 31) AS BIGINT);
    SELECT FIRST 1 M.PRIORITY_RANK FROM QUEUE_MSG M
        WHERE M.STATE = 0 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK <= COALESCE(:LOW_RANK - 1, 32767)
        ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK INTO :RANK;
    RANK = COALESCE(RANK, LOW_RANK);
    WHILE (RANK IS NOT NULL AND ENOUGH = 0) DO
    BEGIN
        AT_MARK = IIF(RANK = LOW_RANK, 1, 0);
        IF (AT_MARK = 1) THEN
        BEGIN
            MOMENT = CAST(SUBSTRING(AFTER_MARK FROM 7 FOR 24) AS TIMESTAMP);
            OPEN AT_MOMENT;
        END
        ELSE
        BEGIN
            MOMENT = TIMESTAMP '0001-01-01';
            OPEN LATER;
        END
        WHILE (ENOUGH = 0) DO
        BEGIN
            IF (AT_MARK = 1) THEN
            BEGIN
                FETCH AT_MOMENT INTO :ID, :PRIORITY, :START_TIME, :EXPIRE_TIME, :REDELIVERED, :EXCHANGE, :ROUTING_KEY,
                    :DEAD_QUEUE, :DEAD_REASON, :MESSAGE;
                IF (ROW_COUNT = 0) THEN
                BEGIN
                    CLOSE AT_MOMENT;
                    AT_MARK = 0;
                    MOMENT = DATEADD(0.1 MILLISECOND TO MOMENT);  -- not >, which would read all of this moment
                    OPEN LATER;
                    CONTINUE;
                END
            END
            ELSE
            BEGIN
                FETCH LATER INTO :ID, :PRIORITY, :START_TIME, :EXPIRE_TIME, :REDELIVERED, :EXCHANGE, :ROUTING_KEY,
                    :DEAD_QUEUE, :DEAD_REASON, :MESSAGE;
                IF (ROW_COUNT = 0) THEN
                    LEAVE;
            END
            IF (EXPIRE_TIME <= NOW_UTC) THEN
            BEGIN
                EXECUTE PROCEDURE DEAD_LETTER(ID, 'expired');
                EXPIRED = EXPIRED + 1;
                UNSEEN = IIF(EXPIRED >= 200, 1, 0);
                ENOUGH = UNSEEN;
                CONTINUE;
            END
            IF (REDELIVERED > DELIVERY_LIMIT) THEN
            BEGIN
                EXECUTE PROCEDURE DEAD_LETTER(ID, 'delivery_limit');
                REDELIVERED = -REDELIVERED;
                DEAD_REASON = IIF(EXISTS(SELECT 1 FROM QUEUE_MSG M WHERE M.ID = :ID), NULL, 'delivery_limit');
                EXPIRED = EXPIRED + 1;
            END
            ELSE
            BEGIN
                IF (FOUND > 0 AND REDELIVERED > DELIVERY_LIMIT / 2) THEN
                BEGIN
                    UNSEEN = 1;
                    ENOUGH = 1;
                    CONTINUE;
                END
                -- By its key: it may be a copy that this statement has made, of a message that was settled or expired.
                UPDATE QUEUE_MSG M SET STATE = 2, CONSUMER_ID = :CONSUMER_ID, CLAIM_ID = :CLAIM_ID WHERE M.ID = :ID;
                FOUND = FOUND + 1;
            END
            ITEM = ID || ';' || PRIORITY || ';' || REDELIVERED || ';' || IIF(MESSAGE IS NULL, 1, 0)
                || ';' || OCTET_LENGTH(EXCHANGE) || ';' || OCTET_LENGTH(ROUTING_KEY)
                || ';' || COALESCE(OCTET_LENGTH(DEAD_QUEUE), 0) || ';' || COALESCE(OCTET_LENGTH(DEAD_REASON), 0)
                || ';' || COALESCE(OCTET_LENGTH(MESSAGE), 0) || ':'
                || CAST(EXCHANGE AS VARCHAR(1000) CHARACTER SET OCTETS)
                || CAST(ROUTING_KEY AS VARCHAR(1000) CHARACTER SET OCTETS)
                || CAST(COALESCE(DEAD_QUEUE, '') AS VARCHAR(1000) CHARACTER SET OCTETS)
                || CAST(COALESCE(DEAD_REASON, '') AS VARCHAR(20) CHARACTER SET OCTETS) || COALESCE(MESSAGE, '');
            IF (OCTET_LENGTH(PACKED) + OCTET_LENGTH(ITEM) > 32765) THEN
            BEGIN
                SUSPEND;
                PACKED = '';
            END
            PACKED = PACKED || ITEM;
            IF (EXPIRED >= 200 OR REDELIVERED > DELIVERY_LIMIT / 2) THEN
                UNSEEN = 1;
            IF (FOUND >= MOST OR UNSEEN = 1) THEN
                ENOUGH = 1;
        END
        IF (AT_MARK = 1) THEN
            CLOSE AT_MOMENT;
        ELSE
            CLOSE LATER;
        IF (FOUND >= MOST) THEN
            MARK = LPAD(RANK, 6) || CAST(START_TIME AS CHAR(24) CHARACTER SET ASCII) || ID;
        IF (RANK = LOW_RANK) THEN
            LOW_RANK = NULL;
        ELSE IF (ENOUGH = 0) THEN
        BEGIN
            NEXT_RANK = RANK + 1;  -- not >, which would read all of this rank
            RANK = NULL;
            SELECT FIRST 1 M.PRIORITY_RANK FROM QUEUE_MSG M
                WHERE M.STATE = 0 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK >= :NEXT_RANK
                ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK INTO :RANK;
        END
    END
    SUSPEND;
END^

-- Which of some queues (numbers of 19 digits) have a message that can be claimed, in one string; and the milliseconds
-- until the next withheld one is due (NULL: there is none).
PROCEDURE ANY_READY (QUEUES QUEUE_DIGITS)
RETURNS (READY QUEUE_DIGITS, NEXT_MS BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE AT_BYTE INTEGER = 1;
    DECLARE QUEUE_ID BIGINT;
    DECLARE DUE TIMESTAMP;
    DECLARE WAIT_MS BIGINT;
BEGIN
    NOW_UTC = QUEUE_NOW();
    READY = '';
    WHILE (AT_BYTE <= CHAR_LENGTH(QUEUES)) DO
    BEGIN
        QUEUE_ID = CAST(SUBSTRING(QUEUES FROM AT_BYTE FOR 19) AS BIGINT);
        AT_BYTE = AT_BYTE + 19;
        DUE = NULL;
        SELECT FIRST 1 M.START_TIME FROM QUEUE_MSG M WHERE M.STATE = 1 AND M.QUEUE_ID = :QUEUE_ID
            ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID INTO :DUE;
        IF (DUE <= NOW_UTC OR HAS(QUEUE_ID, 0)) THEN
            READY = READY || LPAD(QUEUE_ID, 19, '0');
        IF (DUE > NOW_UTC) THEN
        BEGIN
            WAIT_MS = DATEDIFF(MILLISECOND FROM NOW_UTC TO DUE);
            NEXT_MS = COALESCE(MINVALUE(NEXT_MS, WAIT_MS), WAIT_MS);
        END
    END
    SUSPEND;
END^

-- Notes that a process begins (IN_USE 1) or ceases (0) to consume from a queue; an auto-delete queue goes with its
-- last consumer. ID is the queue's number, NULL when there is none of that name. A process that is no longer
-- registered does not begin: it is going to register again, and says then what it consumes from.
PROCEDURE USE_QUEUE (CONSUMER_ID BIGINT, NAME QUEUE_MSG_NAME, IN_USE SMALLINT)
RETURNS (ID BIGINT)
AS
    DECLARE AUTO_DELETE BOOLEAN;
BEGIN
    SELECT Q.ID, Q.AUTO_DELETE FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :NAME INTO :ID, :AUTO_DELETE;
    IF (ID IS NOT NULL) THEN
    BEGIN
        IF (IN_USE = 1) THEN
        BEGIN
            IF (EXISTS(SELECT 1 FROM QUEUE_PROCESS N WHERE N.ID = :CONSUMER_ID)) THEN
                UPDATE OR INSERT INTO QUEUE_MSG_USE (QUEUE_ID, CONSUMER_ID) VALUES (:ID, :CONSUMER_ID)
                    MATCHING (QUEUE_ID, CONSUMER_ID);
        END
        ELSE
        BEGIN
            DELETE FROM QUEUE_MSG_USE U WHERE U.QUEUE_ID = :ID AND U.CONSUMER_ID = :CONSUMER_ID;
            IF (NOT EXISTS(SELECT 1 FROM QUEUE_MSG_USE U WHERE U.QUEUE_ID = :ID)) THEN
            BEGIN
                IF (AUTO_DELETE) THEN
                    EXECUTE PROCEDURE ERASE(ID);
                ELSE
                    UPDATE QUEUE_MSG_QUEUE Q SET USED_TIME = QUEUE_NOW()
                        WHERE Q.ID = :ID AND Q.EXPIRES_MS IS NOT NULL;
            END
        END
    END
    SUSPEND;
END^

-- The number of a queue, for a caller that asks it for a message; NULL when there is none. This counts as use.
PROCEDURE ASK (NAME QUEUE_MSG_NAME)
RETURNS (ID BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
BEGIN
    NOW_UTC = QUEUE_NOW();
    SELECT Q.ID FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :NAME INTO :ID;
    UPDATE QUEUE_MSG_QUEUE Q SET USED_TIME = :NOW_UTC
        WHERE Q.ID = :ID AND Q.EXPIRES_MS IS NOT NULL AND Q.USED_TIME < DATEADD(-500 MILLISECOND TO :NOW_UTC);
    SUSPEND;
END^

-- Which consumers hold messages of which queues: CONSUMER_ID, or when it is NULL all that are not registered. It goes
-- from one to the next in the index, and reads none of what they hold.
PRIVATE PROCEDURE HELD (CONSUMER_ID BIGINT)
RETURNS (QUEUE_ID BIGINT, HOLDER_ID BIGINT)
AS
    DECLARE NEXT_QUEUE_ID BIGINT = 0;
    DECLARE NEXT_ID BIGINT;
BEGIN
    WHILE (NEXT_QUEUE_ID IS NOT NULL) DO
    BEGIN
        QUEUE_ID = NULL;
        SELECT FIRST 1 M.QUEUE_ID FROM QUEUE_MSG M WHERE M.STATE = 2 AND M.QUEUE_ID >= :NEXT_QUEUE_ID
            ORDER BY M.STATE, M.QUEUE_ID INTO :QUEUE_ID;
        NEXT_QUEUE_ID = QUEUE_ID + 1;
        NEXT_ID = COALESCE(CONSUMER_ID, -1);
        WHILE (QUEUE_ID IS NOT NULL AND NEXT_ID IS NOT NULL) DO
        BEGIN
            HOLDER_ID = NULL;
            SELECT FIRST 1 M.PRIORITY_RANK FROM QUEUE_MSG M
                WHERE M.STATE = 2 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK >= :NEXT_ID
                ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK INTO :HOLDER_ID;
            IF (HOLDER_ID = CONSUMER_ID OR (CONSUMER_ID IS NULL AND HOLDER_ID IS NOT NULL
                    AND NOT EXISTS(SELECT 1 FROM QUEUE_PROCESS N WHERE N.ID = :HOLDER_ID))) THEN
                SUSPEND;
            NEXT_ID = IIF(CONSUMER_ID IS NULL, HOLDER_ID + 1, NULL);
        END
    END
END^

-- The consumers that are not registered and are said to use queues.
PRIVATE PROCEDURE STRANGERS
RETURNS (CONSUMER_ID BIGINT)
AS
    DECLARE NEXT_ID BIGINT = 0;
BEGIN
    WHILE (NEXT_ID IS NOT NULL) DO
    BEGIN
        CONSUMER_ID = NULL;
        SELECT FIRST 1 U.CONSUMER_ID FROM QUEUE_MSG_USE U WHERE U.CONSUMER_ID >= :NEXT_ID ORDER BY U.CONSUMER_ID
            INTO :CONSUMER_ID;
        NEXT_ID = CONSUMER_ID + 1;
        IF (CONSUMER_ID IS NOT NULL AND NOT EXISTS(SELECT 1 FROM QUEUE_PROCESS N WHERE N.ID = :CONSUMER_ID)) THEN
            SUSPEND;
    END
END^

-- Notes that a consumer consumes from nothing; its auto-delete queues go. Called by other procedures.
PRIVATE PROCEDURE DISUSE (CONSUMER_ID BIGINT)
AS
    DECLARE NAME QUEUE_MSG_NAME;
    DECLARE GONE BIGINT;
BEGIN
    FOR SELECT Q.NAME FROM QUEUE_MSG_USE U JOIN QUEUE_MSG_QUEUE Q ON Q.ID = U.QUEUE_ID
        WHERE U.CONSUMER_ID = :CONSUMER_ID INTO :NAME DO
        EXECUTE PROCEDURE USE_QUEUE(CONSUMER_ID, NAME, 0) RETURNING_VALUES GONE;
END^

-- Gives back what a consumer held, as delivered, and notes that it consumes from nothing; its auto-delete queues go.
-- Without a CONSUMER_ID it does so for all that are not registered. Rows that another transaction holds at this
-- moment are left for the sweep. Called by other procedures, before the consumer leaves the register.
PROCEDURE GIVE_BACK (CONSUMER_ID BIGINT)
RETURNS (RELEASED INTEGER)
AS
    DECLARE QUEUE_ID BIGINT;
    DECLARE USER_ID BIGINT;
    DECLARE ID BIGINT;
    DECLARE C CURSOR FOR (
        SELECT M.ID FROM QUEUE_MSG M
        WHERE M.STATE = 2 AND M.QUEUE_ID = :QUEUE_ID AND M.PRIORITY_RANK = :USER_ID
        FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    RELEASED = 0;
    FOR SELECT H.QUEUE_ID, H.HOLDER_ID FROM HELD(:CONSUMER_ID) H INTO :QUEUE_ID, :USER_ID DO
    BEGIN
        OPEN C;
        WHILE (1 = 1) DO
        BEGIN
            FETCH C INTO :ID;
            IF (ROW_COUNT = 0) THEN
                LEAVE;
            UPDATE QUEUE_MSG M SET STATE = 0, CONSUMER_ID = NULL, CLAIM_ID = NULL,
                REDELIVERED = MINVALUE(M.REDELIVERED + 1, 32000) WHERE M.ID = :ID;
            RELEASED = RELEASED + 1;
            POST_EVENT 'fbtasks:message:' || MOD(QUEUE_ID, 14);
        END
        CLOSE C;
    END
    IF (CONSUMER_ID IS NOT NULL) THEN
        EXECUTE PROCEDURE DISUSE(CONSUMER_ID);
    ELSE
        FOR SELECT S.CONSUMER_ID FROM STRANGERS S INTO :USER_ID DO
            EXECUTE PROCEDURE DISUSE(USER_ID);
END^

-- Takes away a message that waits and has expired. DONE is 0 when it has not, or another transaction
-- holds it. Called by the sweep.
PRIVATE PROCEDURE EXPIRE (ID BIGINT, NOW_UTC TIMESTAMP)
RETURNS (DONE SMALLINT)
AS
    DECLARE STATE SMALLINT;
BEGIN
    DONE = 0;
    FOR SELECT M.STATE FROM QUEUE_MSG M WHERE M.ID = :ID AND M.STATE <> 2 AND M.EXPIRE_TIME < :NOW_UTC
        FOR UPDATE WITH LOCK SKIP LOCKED INTO :STATE AS CURSOR C DO
    BEGIN
        EXECUTE PROCEDURE DEAD_LETTER(ID, 'expired');
        DONE = 1;
    END
    SUSPEND;
END^

-- The queues in which messages wait, and in which state; from one to the next in the index.
PRIVATE PROCEDURE WAITING
RETURNS (STATE SMALLINT, QUEUE_ID BIGINT)
AS
    DECLARE NEXT_QUEUE_ID BIGINT;
BEGIN
    STATE = 0;
    WHILE (STATE <= 1) DO
    BEGIN
        NEXT_QUEUE_ID = 0;
        WHILE (NEXT_QUEUE_ID IS NOT NULL) DO
        BEGIN
            QUEUE_ID = NULL;
            SELECT FIRST 1 M.QUEUE_ID FROM QUEUE_MSG M WHERE M.STATE = :STATE AND M.QUEUE_ID >= :NEXT_QUEUE_ID
                ORDER BY M.STATE, M.QUEUE_ID INTO :QUEUE_ID;
            NEXT_QUEUE_ID = QUEUE_ID + 1;
            IF (QUEUE_ID IS NOT NULL) THEN
                SUSPEND;
        END
        STATE = STATE + 1;
    END
END^

-- What the oldest consumer does now and then: what is not registered consumes from nothing, queues that were unused
-- for too long go, claimed messages whose consumer is not registered are given back, and up to MOST expired messages
-- are taken away. It looks for these at the beginning of each queue, where they are when a queue's messages have one
-- time to live, and among the next READS messages after AFTER_ID. LAST_ID is how far it looked; NULL: to the end.
PROCEDURE SWEEP (MOST INTEGER, AFTER_ID BIGINT, READS INTEGER)
RETURNS (QUEUES INTEGER, RELEASED INTEGER, EXPIRED INTEGER, LAST_ID BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE QUEUE_ID BIGINT;
    DECLARE ID BIGINT;
    DECLARE STATE SMALLINT;
    DECLARE EXPIRE_TIME TIMESTAMP;
    DECLARE DONE SMALLINT;
    DECLARE SEEN INTEGER = 0;
BEGIN
    NOW_UTC = QUEUE_NOW();
    QUEUES = 0;
    EXPIRED = 0;
    EXECUTE PROCEDURE GIVE_BACK(NULL) RETURNING_VALUES RELEASED;
    FOR SELECT Q.ID FROM QUEUE_MSG_QUEUE Q
        WHERE Q.EXPIRES_MS >= 0 AND DATEADD(Q.EXPIRES_MS MILLISECOND TO Q.USED_TIME) < :NOW_UTC
            AND NOT EXISTS(SELECT 1 FROM QUEUE_MSG_USE U WHERE U.QUEUE_ID = Q.ID)
        INTO :QUEUE_ID DO
    BEGIN
        EXECUTE PROCEDURE ERASE(QUEUE_ID);
        QUEUES = QUEUES + 1;
    END
    FOR SELECT W.QUEUE_ID, W.STATE FROM WAITING W INTO :QUEUE_ID, :STATE DO
        FOR SELECT M.ID, M.EXPIRE_TIME FROM QUEUE_MSG M WHERE M.STATE = :STATE AND M.QUEUE_ID = :QUEUE_ID
            ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID INTO :ID, :EXPIRE_TIME DO
        BEGIN
            IF (EXPIRED >= MOST OR EXPIRE_TIME IS NULL OR EXPIRE_TIME >= NOW_UTC) THEN
                LEAVE;
            EXECUTE PROCEDURE EXPIRE(ID, NOW_UTC) RETURNING_VALUES DONE;
            EXPIRED = EXPIRED + DONE;
        END
    FOR SELECT M.ID, M.EXPIRE_TIME FROM QUEUE_MSG M WHERE M.ID > :AFTER_ID ORDER BY M.ID INTO :ID, :EXPIRE_TIME DO
    BEGIN
        IF (EXPIRED >= MOST OR SEEN >= READS) THEN
        BEGIN
            LAST_ID = COALESCE(LAST_ID, AFTER_ID);
            SUSPEND;
            EXIT;
        END
        IF (EXPIRE_TIME < NOW_UTC) THEN
        BEGIN
            EXECUTE PROCEDURE EXPIRE(ID, NOW_UTC) RETURNING_VALUES DONE;
            EXPIRED = EXPIRED + DONE;
        END
        SEEN = SEEN + 1;
        LAST_ID = ID;
    END
    LAST_ID = NULL;
    SUSPEND;
END^

PACKAGE FBTASKS_CELERY_API^

PROCEDURE DECLARE_EXCHANGE (
    NAME QUEUE_MSG_NAME, KIND VARCHAR(10) CHARACTER SET ASCII, DURABLE BOOLEAN, AUTO_DELETE BOOLEAN)
RETURNS (FOUND VARCHAR(10) CHARACTER SET ASCII)
AS
BEGIN
    IF (KIND IS NOT NULL AND FBTASKS_CELERY.IS_CONTROL(NAME) AND NOT FBTASKS_CELERY.RULES()) THEN
        EXCEPTION QUEUE_REFUSED 'the exchange ' || NAME
            || ' is of Celery''s remote control or events, which takes the role of'
            || ' a worker';
    SELECT X.KIND FROM QUEUE_MSG_EXCHANGE X WHERE X.NAME = :NAME INTO :FOUND;
    IF (FOUND IS NULL AND KIND IS NOT NULL) THEN
    BEGIN
        INSERT INTO QUEUE_MSG_EXCHANGE (ID, NAME, KIND, DURABLE, AUTO_DELETE, CONTROL)
        VALUES (NEXT VALUE FOR QUEUE_MSG_EXCHANGE_SEQ, :NAME, :KIND, :DURABLE, :AUTO_DELETE,
            FBTASKS_CELERY.IS_CONTROL(:NAME));
        FOUND = KIND;
    END
    SUSPEND;
END^

-- Declares a queue, whose arguments become those given; a producer gets an exception when that would change them.
-- With PASSIVE it only looks. ID is NULL when there is none. WAITING counts the messages that no consumer has
-- claimed: with PASSIVE all, else up to 100, since each new connection of a producer declares. CONSUMERS counts the
-- processes that consume, but for the caller's own.
PROCEDURE DECLARE_QUEUE (
    NAME QUEUE_MSG_NAME, PASSIVE BOOLEAN, DURABLE BOOLEAN, AUTO_DELETE BOOLEAN,
    MESSAGE_TTL_MS BIGINT, EXPIRES_MS BIGINT, MAX_LENGTH INTEGER, DEAD_EXCHANGE QUEUE_MSG_NAME,
    DEAD_ROUTING_KEY QUEUE_MSG_NAME, CONSUMER_ID BIGINT)
RETURNS (ID BIGINT, WAITING BIGINT, CONSUMERS INTEGER)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE LONGEST_MS BIGINT = 1000000000000;
    DECLARE DIFFERS BOOLEAN;
    DECLARE WAS_LIMITED BOOLEAN;
    DECLARE UNCOUNTED CURSOR FOR (
        SELECT M.ID FROM QUEUE_MSG M WHERE M.STATE IN (0, 1) AND M.QUEUE_ID = :ID AND NOT M.LIMITED
            FOR UPDATE WITH LOCK SKIP LOCKED);
    DECLARE MESSAGE_ID BIGINT;
BEGIN
    NOW_UTC = QUEUE_NOW();
    WAITING = 0;
    CONSUMERS = 0;
    -- A moment beyond the last date would be an error for every caller that publishes or sweeps.
    MESSAGE_TTL_MS = MINVALUE(MAXVALUE(MESSAGE_TTL_MS, 0), LONGEST_MS);
    EXPIRES_MS = MINVALUE(MAXVALUE(EXPIRES_MS, 0), LONGEST_MS);
    MAX_LENGTH = MAXVALUE(MAX_LENGTH, 0);
    IF (NOT PASSIVE AND FBTASKS_CELERY.IS_CONTROL(NAME) AND NOT FBTASKS_CELERY.RULES()) THEN
        EXCEPTION QUEUE_REFUSED 'the queue ' || NAME
            || ' is of Celery''s remote control or events, which takes the role of a'
            || ' worker';
    SELECT Q.ID, Q.DURABLE <> :DURABLE OR Q.AUTO_DELETE <> :AUTO_DELETE
            OR Q.MESSAGE_TTL_MS IS DISTINCT FROM :MESSAGE_TTL_MS OR Q.EXPIRES_MS IS DISTINCT FROM :EXPIRES_MS
            OR Q.MAX_LENGTH IS DISTINCT FROM :MAX_LENGTH OR Q.DEAD_EXCHANGE IS DISTINCT FROM :DEAD_EXCHANGE
            OR Q.DEAD_ROUTING_KEY IS DISTINCT FROM :DEAD_ROUTING_KEY, Q.MAX_LENGTH IS NOT NULL
        FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :NAME INTO :ID, :DIFFERS, :WAS_LIMITED;
    IF (ID IS NULL AND NOT PASSIVE) THEN
    BEGIN
        ID = NEXT VALUE FOR QUEUE_MSG_QUEUE_SEQ;
        INSERT INTO QUEUE_MSG_QUEUE (ID, NAME, DURABLE, AUTO_DELETE, MESSAGE_TTL_MS, EXPIRES_MS, MAX_LENGTH,
            DEAD_EXCHANGE, DEAD_ROUTING_KEY, USED_TIME, CONTROL)
        VALUES (:ID, :NAME, :DURABLE, :AUTO_DELETE, :MESSAGE_TTL_MS, :EXPIRES_MS, :MAX_LENGTH, :DEAD_EXCHANGE,
            :DEAD_ROUTING_KEY, :NOW_UTC, FBTASKS_CELERY.IS_CONTROL(:NAME));
    END
    ELSE IF (ID IS NOT NULL) THEN
    BEGIN
        IF (NOT PASSIVE) THEN
        BEGIN
            IF (DIFFERS AND NOT FBTASKS_CELERY.RULES()) THEN
                EXCEPTION QUEUE_REFUSED 'the queue ' || NAME
                    || ' was declared with other arguments, and to change them takes'
                    || ' the role of a worker';
            UPDATE QUEUE_MSG_QUEUE Q SET DURABLE = :DURABLE, AUTO_DELETE = :AUTO_DELETE,
                MESSAGE_TTL_MS = :MESSAGE_TTL_MS, EXPIRES_MS = :EXPIRES_MS, MAX_LENGTH = :MAX_LENGTH,
                DEAD_EXCHANGE = :DEAD_EXCHANGE, DEAD_ROUTING_KEY = :DEAD_ROUTING_KEY, USED_TIME = :NOW_UTC
                WHERE Q.ID = :ID AND (:DIFFERS
                    OR (Q.EXPIRES_MS IS NOT NULL AND Q.USED_TIME < DATEADD(-500 MILLISECOND TO :NOW_UTC)));
            IF (MAX_LENGTH IS NOT NULL AND NOT WAS_LIMITED) THEN
            BEGIN
                OPEN UNCOUNTED;
                FETCH UNCOUNTED INTO :MESSAGE_ID;
                WHILE (ROW_COUNT > 0) DO
                BEGIN
                    UPDATE QUEUE_MSG SET LIMITED = TRUE WHERE CURRENT OF UNCOUNTED;
                    FETCH UNCOUNTED INTO :MESSAGE_ID;
                END
                CLOSE UNCOUNTED;
            END
        END
        IF (PASSIVE) THEN
            SELECT COUNT(*) FROM QUEUE_MSG M WHERE M.STATE IN (0, 1) AND M.QUEUE_ID = :ID
                AND (M.EXPIRE_TIME IS NULL OR M.EXPIRE_TIME > :NOW_UTC) INTO :WAITING;
        ELSE
            SELECT MINVALUE(COUNT(*), 100) FROM (
                SELECT * FROM (SELECT FIRST 100 M.EXPIRE_TIME FROM QUEUE_MSG M WHERE M.STATE = 0 AND M.QUEUE_ID = :ID
                    ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK)
                UNION ALL
                SELECT * FROM (SELECT FIRST 100 M.EXPIRE_TIME FROM QUEUE_MSG M WHERE M.STATE = 1 AND M.QUEUE_ID = :ID
                    ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK)) W
                WHERE W.EXPIRE_TIME IS NULL OR W.EXPIRE_TIME > :NOW_UTC INTO :WAITING;
        SELECT COUNT(*) FROM QUEUE_MSG_USE U WHERE U.QUEUE_ID = :ID AND U.CONSUMER_ID <> COALESCE(:CONSUMER_ID, -1)
            INTO :CONSUMERS;
    END
    SUSPEND;
END^

-- DONE: 1 bound (now or before), 0 no such queue, -1 no such exchange.
PROCEDURE BIND (
    QUEUE QUEUE_MSG_NAME, EXCHANGE QUEUE_MSG_NAME,
    ROUTING_KEY QUEUE_MSG_NAME)
RETURNS (DONE SMALLINT)
AS
    DECLARE QUEUE_ID BIGINT;
    DECLARE EXCHANGE_ID BIGINT;
    DECLARE KIND VARCHAR(10) CHARACTER SET ASCII;
    DECLARE CONTROLS BOOLEAN;
    DECLARE CONTROLLED BOOLEAN;
BEGIN
    DONE = 1;
    SELECT Q.ID, Q.CONTROL FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :QUEUE INTO :QUEUE_ID, :CONTROLLED;
    SELECT X.ID, X.KIND, X.CONTROL FROM QUEUE_MSG_EXCHANGE X WHERE X.NAME = :EXCHANGE
        INTO :EXCHANGE_ID, :KIND, :CONTROLS;
    IF ((CONTROLS OR CONTROLLED) AND NOT FBTASKS_CELERY.RULES()) THEN
        EXCEPTION QUEUE_REFUSED IIF(CONTROLS, 'the exchange ' || EXCHANGE, 'the queue ' || QUEUE)
            || ' is of Celery''s remote control or events, which takes the role of a worker';
    IF (EXCHANGE_ID IS NULL) THEN
        DONE = -1;
    ELSE IF (QUEUE_ID IS NULL) THEN
        DONE = 0;
    ELSE IF (NOT EXISTS(SELECT 1 FROM QUEUE_MSG_BINDING B WHERE B.QUEUE_ID = :QUEUE_ID
            AND B.EXCHANGE_ID = :EXCHANGE_ID AND B.ROUTING_KEY = :ROUTING_KEY)) THEN
        INSERT INTO QUEUE_MSG_BINDING (EXCHANGE_ID, QUEUE_ID, ROUTING_KEY, KEY_HASH, PATTERN)
        VALUES (:EXCHANGE_ID, :QUEUE_ID, :ROUTING_KEY, HASH(:ROUTING_KEY),
            IIF(:KIND = 'topic', FBTASKS_CELERY.PATTERN(:ROUTING_KEY), NULL));
    SUSPEND;
END^

-- Publishes a message: one copy for each queue that it is routed to. START_MS (of the Unix epoch) withholds it until
-- then; TTL_MS limits how long it waits after that. MESSAGE up to 8000 bytes, else DATA. Where nothing is bound it
-- goes to the queue FALLBACK, if there is one. ROUTED is the number of queues, -1 for an exchange that is not there;
-- LAST_ID is the number of one copy.
PROCEDURE PUBLISH (
    EXCHANGE QUEUE_MSG_NAME, ROUTING_KEY QUEUE_MSG_NAME, PRIORITY SMALLINT,
    START_MS BIGINT, TTL_MS BIGINT, MESSAGE VARCHAR(8000) CHARACTER SET OCTETS, DATA QUEUE_BINARY,
    FALLBACK QUEUE_MSG_NAME)
RETURNS (ROUTED INTEGER, LAST_ID BIGINT)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE START_TIME TIMESTAMP;
    DECLARE STATE SMALLINT;
    DECLARE KNOWN SMALLINT;
    DECLARE QUEUE_ID BIGINT;
    DECLARE CONTROL BOOLEAN;
    DECLARE TTL BIGINT;
    DECLARE MAX_LENGTH INTEGER;
BEGIN
    NOW_UTC = QUEUE_NOW();
    START_TIME = COALESCE(MAXVALUE(NOW_UTC, DATEADD(START_MS MILLISECOND TO TIMESTAMP '1970-01-01')), NOW_UTC);
    STATE = IIF(START_TIME > NOW_UTC, 1, 0);
    ROUTED = 0;
    FOR SELECT R.KNOWN, R.QUEUE_ID, Q.MESSAGE_TTL_MS, Q.MAX_LENGTH, Q.CONTROL
        FROM FBTASKS_CELERY.ROUTE(:EXCHANGE, :ROUTING_KEY) R LEFT JOIN QUEUE_MSG_QUEUE Q ON Q.ID = R.QUEUE_ID
        INTO :KNOWN, :QUEUE_ID, :TTL, :MAX_LENGTH, :CONTROL DO
    BEGIN
        IF ((KNOWN = 2 OR CONTROL) AND NOT FBTASKS_CELERY.RULES()) THEN
            EXCEPTION QUEUE_REFUSED 'a message to ' || IIF(EXCHANGE = '', ROUTING_KEY, EXCHANGE)
                || ' is one of Celery''s remote control or events, which takes the role of a worker';
        IF (KNOWN = 2) THEN
            CONTINUE;
        IF (KNOWN = 0) THEN
        BEGIN
            ROUTED = -1;
            LEAVE;
        END
        LAST_ID = NEXT VALUE FOR QUEUE_MSG_SEQ;
        ROUTED = ROUTED + 1;
        TTL = COALESCE(MINVALUE(TTL, TTL_MS), TTL, TTL_MS);
        INSERT INTO QUEUE_MSG (ID, QUEUE_ID, STATE, PRIORITY_RANK, PRIORITY, START_TIME, EXPIRE_TIME, LIMITED,
            EXCHANGE, ROUTING_KEY, MESSAGE)
        VALUES (:LAST_ID, :QUEUE_ID, :STATE, IIF(:STATE = 1, 0, 9 - :PRIORITY), :PRIORITY, :START_TIME,
            DATEADD(:TTL MILLISECOND TO :START_TIME), :MAX_LENGTH IS NOT NULL, :EXCHANGE, :ROUTING_KEY, :MESSAGE);
        IF (MESSAGE IS NULL) THEN
            INSERT INTO QUEUE_MSG_BODY (ID, DATA) VALUES (:LAST_ID, :DATA);
        POST_EVENT 'fbtasks:message:' || MOD(QUEUE_ID, 14);
        IF (MAX_LENGTH IS NOT NULL) THEN
            EXECUTE PROCEDURE FBTASKS_CELERY.TRIM_QUEUE(QUEUE_ID, MAX_LENGTH);
    END
    IF (ROUTED <= 0 AND FALLBACK IS NOT NULL) THEN
        EXECUTE PROCEDURE PUBLISH('', FALLBACK, PRIORITY, START_MS, TTL_MS, MESSAGE, DATA, NULL)
            RETURNING_VALUES ROUTED, LAST_ID;
    SUSPEND;
END^

-- The door for programs: many small publications in one string, in their order. A record is 1 digit of priority, 15
-- digits each of START_MS and TTL_MS (or spaces), lengths of 4, 4, 4 and 5 digits, then exchange, routing key,
-- fallback and message. Returns 6 characters for each: the number of queues that it went to, or -1; and the number of
-- its transaction, by which a caller that lost the answer to the COMMIT asks after it.
PROCEDURE PUBLISH_PACKED (ITEMS QUEUE_RECORDS)
RETURNS (COUNTS QUEUE_DIGITS, TRANSACTION_ID BIGINT)
AS
    DECLARE AT_BYTE INTEGER = 1;
    DECLARE PRIORITY SMALLINT;
    DECLARE START_MS BIGINT;
    DECLARE TTL_MS BIGINT;
    DECLARE LEN_EXCHANGE INTEGER;
    DECLARE LEN_KEY INTEGER;
    DECLARE LEN_FALLBACK INTEGER;
    DECLARE LEN_MESSAGE INTEGER;
    DECLARE EXCHANGE VARCHAR(1000) CHARACTER SET OCTETS;
    DECLARE ROUTING_KEY VARCHAR(1000) CHARACTER SET OCTETS;
    DECLARE FALLBACK VARCHAR(1000) CHARACTER SET OCTETS;
    DECLARE MESSAGE VARCHAR(8000) CHARACTER SET OCTETS;
    DECLARE ROUTED INTEGER;
    DECLARE LAST_ID BIGINT;
BEGIN
    COUNTS = '';
    WHILE (AT_BYTE <= OCTET_LENGTH(ITEMS)) DO
    BEGIN
        PRIORITY = CAST(SUBSTRING(ITEMS FROM AT_BYTE FOR 1) AS SMALLINT);
        START_MS = IIF(SUBSTRING(ITEMS FROM AT_BYTE + 1 FOR 1) = ' ', NULL,
            CAST(SUBSTRING(ITEMS FROM AT_BYTE + 1 FOR 15) AS BIGINT));
        TTL_MS = IIF(SUBSTRING(ITEMS FROM AT_BYTE + 16 FOR 1) = ' ', NULL,
            CAST(SUBSTRING(ITEMS FROM AT_BYTE + 16 FOR 15) AS BIGINT));
        LEN_EXCHANGE = CAST(SUBSTRING(ITEMS FROM AT_BYTE + 31 FOR 4) AS INTEGER);
        LEN_KEY = CAST(SUBSTRING(ITEMS FROM AT_BYTE + 35 FOR 4) AS INTEGER);
        LEN_FALLBACK = CAST(SUBSTRING(ITEMS FROM AT_BYTE + 39 FOR 4) AS INTEGER);
        LEN_MESSAGE = CAST(SUBSTRING(ITEMS FROM AT_BYTE + 43 FOR 5) AS INTEGER);
        AT_BYTE = AT_BYTE + 48;
        EXCHANGE = SUBSTRING(ITEMS FROM AT_BYTE FOR LEN_EXCHANGE);
        AT_BYTE = AT_BYTE + LEN_EXCHANGE;
        ROUTING_KEY = SUBSTRING(ITEMS FROM AT_BYTE FOR LEN_KEY);
        AT_BYTE = AT_BYTE + LEN_KEY;
        FALLBACK = IIF(LEN_FALLBACK = 0, NULL, SUBSTRING(ITEMS FROM AT_BYTE FOR LEN_FALLBACK));
        AT_BYTE = AT_BYTE + LEN_FALLBACK;
        MESSAGE = SUBSTRING(ITEMS FROM AT_BYTE FOR LEN_MESSAGE);
        AT_BYTE = AT_BYTE + LEN_MESSAGE;
        EXECUTE PROCEDURE PUBLISH(CAST(EXCHANGE AS VARCHAR(250) CHARACTER SET UTF8),
            CAST(ROUTING_KEY AS VARCHAR(250) CHARACTER SET UTF8), PRIORITY, START_MS, TTL_MS, MESSAGE, NULL,
            CAST(FALLBACK AS VARCHAR(250) CHARACTER SET UTF8)) RETURNING_VALUES ROUTED, LAST_ID;
        COUNTS = COUNTS || LPAD(ROUTED, 6, ' ');
    END
    TRANSACTION_ID = CURRENT_TRANSACTION;
    SUSPEND;
END^

-- Stores a value. A final one (FINAL 1) is never replaced, so that a task which was thought lost cannot overwrite the
-- success of its successor. EXPIRES_MS NULL: kept for ever.
PROCEDURE PUT_VALUE (
    NAME QUEUE_MSG_NAME, FINAL SMALLINT, EXPIRES_MS BIGINT, SHORT_DATA VARCHAR(8000) CHARACTER SET OCTETS,
    DATA QUEUE_BINARY)
AS
    DECLARE NOW_UTC TIMESTAMP;
    DECLARE WAS SMALLINT;
BEGIN
    NOW_UTC = QUEUE_NOW();
    SELECT R.FINAL FROM QUEUE_CELERY R WHERE R.NAME = :NAME WITH LOCK INTO :WAS;
    IF (WAS IS DISTINCT FROM 1) THEN
    BEGIN
        UPDATE OR INSERT INTO QUEUE_CELERY (NAME, FINAL, STORE_TIME, EXPIRE_TIME, SHORT_DATA, DATA)
        VALUES (:NAME, :FINAL, :NOW_UTC, DATEADD(:EXPIRES_MS MILLISECOND TO :NOW_UTC), :SHORT_DATA,
            :DATA) MATCHING (NAME);
        POST_EVENT 'fbtasks:celery:' || MOD(ABS(HASH(NAME)), 15);
    END
END^

-- A value, in one of two columns; NULL in both when there is none, or it has expired.
PROCEDURE GET_VALUE (NAME QUEUE_MSG_NAME)
RETURNS (SHORT_DATA VARCHAR(8000) CHARACTER SET OCTETS, DATA QUEUE_BINARY)
AS
BEGIN
    SELECT R.SHORT_DATA, R.DATA FROM QUEUE_CELERY R WHERE R.NAME = :NAME
            AND (R.EXPIRE_TIME IS NULL OR R.EXPIRE_TIME > QUEUE_NOW())
        INTO :SHORT_DATA, :DATA;
    SUSPEND;
END^

PROCEDURE DELETE_VALUE (NAME QUEUE_MSG_NAME)
AS
BEGIN
    DELETE FROM QUEUE_CELERY R WHERE R.NAME = :NAME;
END^

PACKAGE FBTASKS_CELERY_UPKEEP^

-- Deletes up to MOST messages of a queue that no consumer has claimed. PURGED is NULL when there is no such queue.
PROCEDURE PURGE (NAME QUEUE_MSG_NAME, MOST INTEGER)
RETURNS (PURGED INTEGER)
AS
    DECLARE QUEUE_ID BIGINT;
    DECLARE STATE SMALLINT = 0;
    DECLARE ID BIGINT;
    DECLARE LARGE BOOLEAN;
    DECLARE OF_STATE CURSOR FOR (
        SELECT M.ID, M.MESSAGE IS NULL AS LARGE FROM QUEUE_MSG M WHERE M.STATE = :STATE AND M.QUEUE_ID = :QUEUE_ID
            ORDER BY M.STATE, M.QUEUE_ID, M.PRIORITY_RANK, M.START_TIME, M.ID
            FOR UPDATE WITH LOCK SKIP LOCKED);
BEGIN
    SELECT Q.ID FROM QUEUE_MSG_QUEUE Q WHERE Q.NAME = :NAME INTO :QUEUE_ID;
    IF (QUEUE_ID IS NOT NULL) THEN
    BEGIN
        PURGED = 0;
        WHILE (STATE IS NOT NULL) DO
        BEGIN
            OPEN OF_STATE;
            WHILE (PURGED < MOST) DO
            BEGIN
                FETCH OF_STATE INTO :ID, :LARGE;
                IF (ROW_COUNT = 0) THEN
                    LEAVE;
                DELETE FROM QUEUE_MSG WHERE CURRENT OF OF_STATE;
                IF (LARGE) THEN
                    DELETE FROM QUEUE_MSG_BODY D WHERE D.ID = :ID;
                PURGED = PURGED + 1;
            END
            CLOSE OF_STATE;
            STATE = DECODE(STATE, 0, 1, 1, 3);
        END
    END
    SUSPEND;
END^

SET TERM ; ^
