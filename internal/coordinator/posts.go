package coordinator

import (
	"fmt"
	"slices"
)

// reader is a rank that waits for the answer to m, a message Post.
type reader struct {
	rank int
	m    *Message
}

// maxPost is the largest size of a posted value in bytes. maxPosted is the largest total size of the values in one
// answer, unless the answer holds a single value. Although JSON holds values in base64, an answer is smaller than
// maxMessage.
const (
	maxPost   = 8 << 20
	maxPosted = maxMessage / 2
)

// post handles the message Post: it stores or withdraws the rank's value, and answers the messages whose
// values have all been posted.
func (c *Core) post(g *group, from int, m *Message) error {
	if m.Final {
		g.readers = slices.DeleteFunc(g.readers, func(r reader) bool { return r.rank == from && r.m.Number == m.Number })
		return nil
	}
	if len(m.Value) > maxPost {
		return fmt.Errorf("rank %d posts %d bytes of %q, want at most %d", from, len(m.Value), m.Key, maxPost)
	}
	posts := g.posts[m.Key]
	switch {
	case len(m.Value) > 0:
		if posts == nil {
			posts = map[int][]byte{}
			g.posts[m.Key] = posts
		}
		posts[from] = m.Value
	case len(m.Ranks) == 0:
		if delete(posts, from); len(posts) == 0 {
			delete(g.posts, m.Key)
		}
	}
	g.readers = append(g.readers, reader{from, m})
	c.read(g, m.Key)
	return nil
}

// read answers the readers of a key that wait for no more values, and those that wait for a value of a rank
// that is gone. The key "" stands for all keys.
func (c *Core) read(g *group, key string) {
	g.readers = slices.DeleteFunc(g.readers, func(r reader) bool {
		if key != "" && r.m.Key != key {
			return false
		}
		posts := g.posts[r.m.Key]
		var gone []int
		var values [][]byte
		size, n, waits := 0, 0, false
		for _, rank := range r.m.Ranks {
			value, ok := posts[rank]
			switch {
			case ok:
			case c.ranks[rank].state == lost || c.departed(g.name, rank):
				gone = append(gone, rank)
			default:
				waits = true
			}
			values = append(values, value)
			if size += len(value); size <= maxPosted {
				n++
			}
		}
		if waits && gone == nil {
			return false
		}
		answer := &Message{Verb: Posted, Number: r.m.Number, Group: g.name, Key: r.m.Key, Ranks: gone}
		if gone == nil {
			answer.Values = values[:n]
		}
		c.send(answer, r.rank)
		return true
	})
}
