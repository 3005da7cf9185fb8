package wire

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A Log writes the first rejection at once, and then ever fewer lines with the number of rejections. So a flood
// of connections cannot fill a disk.
func TestRejectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		logger := slog.New(slog.NewTextHandler(&text, nil))
		r := NewRejections(logger, "connection rejected")
		reject := func(times int) {
			for i := range times {
				r.Add(fmt.Sprint("peer", i), io.ErrUnexpectedEOF)
				time.Sleep(100 * time.Millisecond)
			}
		}
		reject(3000) // in five minutes
		time.Sleep(3 * lastInterval)
		reject(15) // the first interval has a second again
		r.Close()
		var counts []int
		total := 0
		for line := range strings.Lines(text.String()) {
			var n int
			if _, err := fmt.Sscanf(line[strings.Index(line, "count="):], "count=%d", &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			counts = append(counts, n)
			total += n
		}
		// At once, after 1, 3, 7, 15, 31 and 63 seconds, every minute, and once more; then at once, after 1 second, and at the end.
		if total != 3015 || counts[0] != 1 || len(counts) != 7+4+3 {
			t.Errorf("%d lines count %d of 3015 rejections: %v", len(counts), total, counts)
		}
	})
}
