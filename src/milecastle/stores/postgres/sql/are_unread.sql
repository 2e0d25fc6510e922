(
    SELECT count(*) FROM unnest($40) AS asked (number) WHERE asked.number = batch.number
) = (SELECT count(*) FROM found WHERE found.batch = batch.number)
