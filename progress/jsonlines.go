package progress

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/jsonfloat"
)

// jsonFile is a file of JSON lines.
type jsonFile struct {
	*os.File
	start time.Time
}

// newJSONFile opens a file. If the file has lines of an earlier run, newJSONFile appends the first line of this run, which
// begins after the step `first`. It first completes the last line, because the process may have been killed while
// writing it.
func newJSONFile(path string, first int, now time.Time) (file, error) {
	// A pipe without a reader is an error, instead of blocking the training.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, err
	}
	lines := jsonFile{f, now}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return lines, nil
	}
	if r, err := os.Open(path); err == nil { // the file may be write-only
		last := make([]byte, 1)
		if _, err := r.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			_, _ = f.WriteString("\n") // if this fails, so does the next write
		}
		r.Close()
	}
	if err := lines.write(now, first, nil); err != nil {
		f.Close()
		return nil, err
	}
	return lines, nil
}

func (f jsonFile) write(now time.Time, step int, values []Value) error {
	var b strings.Builder
	fmt.Fprintf(&b, `{"time":%.3f,"step":%d`, now.Sub(f.start).Seconds(), step)
	for _, v := range values {
		name, _ := jsonfloat.Marshal(v.Name) // encoding a string or a number cannot fail
		number, _ := jsonfloat.Marshal(v.Number)
		fmt.Fprintf(&b, ",%s:%s", name, number)
	}
	b.WriteString("}\n")
	_, err := f.WriteString(b.String())
	return err
}
