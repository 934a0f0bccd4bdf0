-- Which tasks a schedule has made.
SET TERM ^ ;

-- The last ten, the newest first: of each the id in 19 digits, and a semicolon.
ALTER TABLE QUEUE_SCHEDULE ADD RUNS VARCHAR(200) CHARACTER SET ASCII DEFAULT '' NOT NULL^
COMMIT^

SET TERM ; ^
