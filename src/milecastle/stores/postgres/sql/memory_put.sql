-- Writes items of long-term memory: puts of any version. Parameters as in memory_write.sql.
WITH {given}
{insert}
