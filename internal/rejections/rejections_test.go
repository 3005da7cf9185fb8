package rejections

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A Log writes the first rejection at once, and then one line a second with the number
// of rejections. So a flood of connections cannot fill a disk.
func TestRejectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		logger := slog.New(slog.NewTextHandler(&text, nil))
		r := New(logger, "connection rejected")
		start := time.Now()
		for i := range 10000 {
			r.Add(fmt.Sprint("peer", i), io.ErrUnexpectedEOF)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		r.Add("last", io.ErrUnexpectedEOF)
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
		if seconds := int(time.Since(start) / time.Second); total != 10001 || len(counts) > seconds+2 || counts[0] != 1 {
			t.Errorf("%d lines in %d s count %d of 10001 rejections: %v", len(counts), seconds, total, counts)
		}
	})
}
