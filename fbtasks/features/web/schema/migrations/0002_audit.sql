-- The login with which a line of the audit was written.
SET TERM ^ ;

-- That of the dashboard, as the database knows it; NULL: the line is older than this column.
ALTER TABLE QUEUE_AUDIT ADD LOGIN QUEUE_USER^
COMMIT^

SET TERM ; ^
