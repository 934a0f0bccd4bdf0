-- How the room of deleted rows is used again.
SET TERM ^ ;

PACKAGE FBTASKS_CORE^

-- Reads the next READS rows behind AFTER_KEY in a table. LAST_KEY is how far it came; NULL: to the end. In the order of
-- the table: a read in the order of an index holds the page of it that it is at, and leaves it there, empty, when it
-- collects the last row of that page.
PROCEDURE VISIT (TABLE_NAME QUEUE_NAME, AFTER_KEY BINARY(8), READS INTEGER)
RETURNS (LAST_KEY BINARY(8))
AS
    DECLARE ROW_KEY BINARY(8);
    DECLARE SEEN INTEGER = 0;
BEGIN
    FOR EXECUTE STATEMENT ('SELECT T.RDB$DB_KEY FROM ' || TABLE_NAME || ' T WHERE T.RDB$DB_KEY > ?') (AFTER_KEY)
        WITH CALLER PRIVILEGES INTO :ROW_KEY DO
    BEGIN
        SEEN = SEEN + 1;
        IF (SEEN >= READS) THEN
        BEGIN
            LAST_KEY = ROW_KEY;
            LEAVE;
        END
    END
END^

PACKAGE FBTASKS_WORKER^

-- Has the room of deleted rows used again. The engine gives it back when somebody reads the row that is not there any
-- more, after all transactions have ended that may still see it; and nobody reads a row again that was deleted by its
-- key. So each of the tables of QUEUE_COLLECTED is read through, READS rows at a time: POSITIONS, which is NULL at the
-- beginning, says how far it came in each, in eight bytes, and NEXT_POSITIONS the same after this call; NULL: all were
-- read to their ends.
PROCEDURE COLLECT (POSITIONS VARCHAR(800) CHARACTER SET OCTETS, READS INTEGER)
RETURNS (NEXT_POSITIONS VARCHAR(800) CHARACTER SET OCTETS)
AS
    DECLARE TABLE_NAME QUEUE_NAME;
    DECLARE AT_KEY BINARY(8);
    DECLARE READ_ON SMALLINT = 0;
BEGIN
    NEXT_POSITIONS = '';
    FOR SELECT TABLE_NAME FROM QUEUE_COLLECTED ORDER BY NO_ INTO :TABLE_NAME DO
    BEGIN
        -- Of a table that has come since the round began there is nothing: it is read from its start.
        AT_KEY = COALESCE(SUBSTRING(POSITIONS FROM OCTET_LENGTH(NEXT_POSITIONS) + 1 FOR 8), '');
        IF (AT_KEY <> x'FFFFFFFFFFFFFFFF') THEN
        BEGIN
            IF (EXISTS(SELECT 1 FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = :TABLE_NAME)) THEN
                EXECUTE PROCEDURE FBTASKS_CORE.VISIT(TABLE_NAME, AT_KEY, READS) RETURNING_VALUES AT_KEY;
            ELSE
                AT_KEY = NULL;  -- the feature was dropped
            IF (AT_KEY IS NULL) THEN
                AT_KEY = x'FFFFFFFFFFFFFFFF';
            ELSE
                READ_ON = 1;
        END
        NEXT_POSITIONS = NEXT_POSITIONS || AT_KEY;
    END
    IF (READ_ON = 0) THEN
        NEXT_POSITIONS = NULL;
    SUSPEND;
END^

SET TERM ; ^
