(
    SELECT count(*)::integer FROM found WHERE found.batch = head.number AND found.topic = {topic}
)
