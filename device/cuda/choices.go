//go:build cgo && linux

package cuda

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
)

// choices stores the results of races in one entry of the cache. They are valid for one type of GPU and
// one version of cuBLAS. Concurrent processes may overwrite each other's entry; lost results are
// measured again in the next run.
type choices struct {
	cache cache
	key   string
	log   *slog.Logger
	made  map[string]string // the way that was chosen, by what it computes
}

func openChoices(d *gpuDevice, blas *blasLt) *choices {
	key := sha256.Sum256(fmt.Appendf(nil, "1 %q %q %d", d.props.name, d.props.arch(), blas.version()))
	c := &choices{cache: openCache(d.cache, d.log), key: fmt.Sprintf("%x.races", key), log: d.log}
	c.made = c.read()
	return c
}

// read returns the entry's content. A damaged entry counts as empty.
func (c *choices) read() map[string]string {
	made := map[string]string{}
	if c.cache.dir == "" || json.Unmarshal(c.cache.load(c.key), &made) != nil {
		return map[string]string{}
	}
	return made
}

// put adds a choice. If it cannot be stored, the next run measures again.
func (c *choices) put(what, way string) {
	c.made[what] = way
	if c.cache.dir == "" {
		return
	}
	all := c.read() // other processes may have added theirs
	maps.Copy(all, c.made)
	content, err := json.Marshal(all)
	if err == nil {
		err = c.cache.store(c.key, content)
	}
	if err != nil {
		c.log.Info("cuda: the result of a race cannot be stored", "cause", err)
	}
}
