-- Nobody else writes to the database while it joins a map.
LOCK TABLE {schema}.threads, {schema}.entries, {schema}.runs IN ACCESS EXCLUSIVE MODE;
