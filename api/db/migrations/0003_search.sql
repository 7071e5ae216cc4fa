-- The words of what was said and done, for the search over transcripts. An index entry costs the
-- same however long the transcript is; they are gathered and brought in by the megabyte.
ALTER TABLE events ADD COLUMN words tsvector;

-- Where `->>` would refuse the body (U+0000, surrogates) the event stays without words.
UPDATE events
SET words = to_tsvector('simple', lower(regexp_replace(
        left(coalesce(body ->> 'text', body ->> 'output', body ->> 'title'), 8192),
        '[^[:alnum:]]+', ' ', 'g'
    )))
WHERE type IN ('message', 'thought', 'tool.call', 'tool.result')
  AND body::text !~ '\\u(0000|[dD][89a-fA-F])';

CREATE INDEX events_words ON events USING gin (words) WITH (gin_pending_list_limit = 1024)
WHERE words IS NOT NULL;

-- The unfinished word at the end of what the turn has said: text comes in pieces of a moment each.
ALTER TABLE turns ADD COLUMN tail text NOT NULL DEFAULT '';
