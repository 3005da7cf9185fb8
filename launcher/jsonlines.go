package launcher

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/goddp/goddp/launcher/internal/failure"
)

// jsonTime is RFC 3339 with nanoseconds of a fixed width.
const jsonTime = "2006-01-02T15:04:05.000000000Z07:00"

// The sources of a line.
const (
	fromWorker   = "worker"
	fromGolaunch = "golaunch"
)

// jsonLine is a line of the console if Config.JSONLines is set. Users' log collectors
// depend on the names of its fields.
type jsonLine struct {
	Time   string `json:"time"` // when the agent read the line
	Source string `json:"source"`
	Host   string `json:"host"`
	*workerLabel
	Line    string       `json:"line"`              // bytes that are no UTF-8 are replaced by U+FFFD
	Partial bool         `json:"partial,omitempty"` // the worker's line is longer than maxLine, and the next object of the stream continues it
	Failure *jsonFailure `json:"failure,omitempty"`
}

// workerLabel says which worker wrote a line.
type workerLabel struct {
	Node      int    `json:"node"`
	Rank      int    `json:"rank"`
	LocalRank int    `json:"local_rank"`
	Role      string `json:"role"`
	Attempt   int    `json:"attempt"`
	Stream    string `json:"stream"` // "stdout" or "stderr"
}

// append appends the line's JSON and "\n" to out. The line has the current time and the
// given text.
func (l jsonLine) append(out []byte, text string) []byte {
	l.Time, l.Line = time.Now().UTC().Format(jsonTime), text
	b := bytes.NewBuffer(out)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		panic(err) // the line is plain data
	}
	return b.Bytes()
}

// jsonFailure is a FailureError as JSON.
type jsonFailure struct {
	Program  string `json:"program"`
	ExitCode int    `json:"exit_code"` // golaunch's
	Nodes    int    `json:"nodes"`
	Restarts int    `json:"restarts"`
	Reason   string `json:"reason,omitempty"`  // why no restart followed
	Records  string `json:"records,omitempty"` // the folder with the flight records
	Meaning  string `json:"meaning,omitempty"` // the analysis of these records

	Root    jsonWorker   `json:"root_cause"`
	Others  []jsonWorker `json:"others,omitempty"`
	Stopped []jsonWorker `json:"stopped,omitempty"`
	Before  []jsonWorker `json:"lost_before,omitempty"` // the last workers without which the others went on
}

// jsonWorker is a failure as JSON.
type jsonWorker struct {
	Time      string   `json:"time"`
	Node      int      `json:"node"`
	Host      string   `json:"host"`
	Lost      string   `json:"lost,omitempty"` // how the node was lost; then Rank is its first rank
	Rank      int      `json:"rank"`
	LocalRank int      `json:"local_rank"`
	PID       int      `json:"pid,omitempty"`
	Attempt   int      `json:"attempt"`
	Code      int      `json:"code"`             // the exit code, 0 if a signal killed the worker
	Signal    string   `json:"signal,omitempty"` // the signal's name
	Killed    string   `json:"killed,omitempty"` // why golaunch killed the worker
	Message   string   `json:"message,omitempty"`
	Stack     []string `json:"stack,omitempty"`
	Stderr    []string `json:"stderr,omitempty"` // the last lines of the worker's stderr
}

func newJSONFailure(e *FailureError) *jsonFailure {
	j := &jsonFailure{
		Program: e.program, ExitCode: ExitCode(e), Nodes: e.nodes, Restarts: e.restarts, Reason: e.reason, Records: e.records,
		Root: newJSONWorker(&e.root),
	}
	if e.showsMeaning() {
		j.Meaning = e.meaning.String()
	}
	for _, f := range e.others {
		j.Others = append(j.Others, newJSONWorker(&f))
	}
	for _, f := range e.stopped {
		j.Stopped = append(j.Stopped, newJSONWorker(&f))
	}
	for _, f := range e.before {
		j.Before = append(j.Before, newJSONWorker(&f))
	}
	return j
}

func newJSONWorker(f *failure.Failure) jsonWorker {
	j := jsonWorker{
		Time: f.When().UTC().Format(jsonTime), Node: f.Node, Host: f.Host,
		Rank: f.Rank, LocalRank: f.LocalRank, PID: f.PID, Attempt: f.Attempt, Code: f.Status.Code,
		Stack: stackOf(f),
	}
	if f.Kind == failure.Worker {
		j.Killed = f.Why
	} else {
		j.Lost = f.Why
	}
	if f.Status.Signal != 0 {
		j.Signal = failure.SignalName(f.Status.Signal)
	}
	switch {
	case f.ErrorFile != nil:
		j.Message = f.ErrorFile.Message
		if j.Stack == nil && f.ErrorFile.Callstack != "" { // the error file's stack is of a program that is not Go
			j.Stack = []string{f.ErrorFile.Callstack}
		}
	case len(f.Crash) > 0:
		j.Message = strings.Join(crashMessage(f), "\n")
	}
	if len(f.Crash) == 0 || j.Stack == nil { // otherwise the worker's stderr ends with the stack
		j.Stderr = f.Stderr
	}
	return j
}
