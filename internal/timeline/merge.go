package timeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Merge writes the traces of all ranks as one, on one clock. It reads the files again.
func (j *Job) Merge(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprint(w, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")
	end := "\n"
	for i, first := range j.ranks {
		inFile := func(r *rank) bool { return r.path == first.path }
		if slices.ContainsFunc(j.ranks[:i], inFile) {
			continue
		}
		entries, err := decode[map[string]json.RawMessage](first.path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			at := slices.IndexFunc(j.ranks, func(r *rank) bool { return inFile(r) && r.pid == string(e["pid"]) })
			if at < 0 { // the metadata of a rank without events
				continue
			}
			r := j.ranks[at]
			e["pid"] = fmt.Append(nil, r.number)
			if string(e["ph"]) == `"X"` {
				e["ts"] = shifted(e["ts"], r.shift)
				var args map[string]json.RawMessage
				if json.Unmarshal(e["args"], &args) == nil && args["enqueued"] != nil {
					args["enqueued"] = shifted(args["enqueued"], r.shift)
					if e["args"], err = json.Marshal(args); err != nil {
						return err
					}
				}
			}
			line, err := json.Marshal(e)
			if err != nil {
				return err
			}
			fmt.Fprint(w, end)
			w.Write(line)
			end = ",\n"
		}
	}
	fmt.Fprint(w, "\n]}\n")
	return w.Flush()
}

// shifted adds a time to a number of microseconds. It returns what is not a number as it is.
func shifted(us json.RawMessage, by time.Duration) json.RawMessage {
	ns, err := nanoseconds(json.Number(us))
	if err != nil {
		return us
	}
	ns += int64(by)
	return fmt.Appendf(nil, "%d.%03d", ns/1000, ns%1000)
}
