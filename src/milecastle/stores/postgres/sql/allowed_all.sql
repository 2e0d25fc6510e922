allowed AS (SELECT place FROM locked)
