// Package progress reports the progress of a training run on a terminal and in a file.
//
//	meter, err := progress.New(pg.Rank(), &progress.Options{Steps: total, File: "run.jsonl"})
//	if err != nil {
//		return err
//	}
//	defer meter.Close()
//	for ... {
//		... a step over batch samples of all ranks ...
//		if meter.Step(batch) {
//			meter.Log(progress.V("loss", loss), progress.V("lr", rate))
//		}
//	}
//
// Only rank 0 writes lines. Step returns true every Every steps, on all ranks, so the
// code that it guards may call a collective, for example to average the loss over the ranks.
//
// On a terminal, also on that of golaunch, there is a bar instead, which is redrawn with the steps a second, the time that is
// left and the last values. A dumb terminal (TERM=dumb), a file and a pipe get a line for each report.
//
// # The file
//
// Each line is a JSON object with the members "time" (seconds since New), "step" (the number of completed steps), and
// the values given to Log or Note. A number that JSON cannot represent is the string "NaN", "+Inf" or "-Inf". If the
// file already has lines, New appends a line with time 0, the step at which the run resumes, and no values. `goddp
// plot` plots the file.
//
// The lines of Log also have "samples_per_second" since the previous line, the same of what [Meter.Count] counts, the numbers
// of [Process], "device_bytes" if Options.DeviceBytes is set, and "mfu" if Options.PeakFLOPS is. A heap that grows from line
// to line indicates a leak.
//
// # TensorBoard
//
// If File is "tb:DIR", the Meter writes the same numbers as scalars into an event file in the folder DIR, for
// TensorBoard. A run that resumes writes another file into the folder, and TensorBoard shows one curve. A run that begins anew
// replaces the curve, so give each run that you want to keep its own folder.
//
// # The page of golaunch
//
// Under golaunch --page, each rank reports to the page what it logs, and how long its steps take. Call [Meter.Lap] after
// each part of the loop, so that the page can say which part makes a rank slow:
//
//	meter, err := progress.New(pg.Rank(), &progress.Options{Waited: model.Waited})
//	for batch, err := range loader.Epoch(ctx, epoch) {
//		meter.Lap("data")
//		loss := criterion(model.Forward(batch.Vars[0]), batch.Vars[1])
//		meter.Lap("forward")
//		... loss.Backward(nil)
//		meter.Lap("backward")
//		... opt.Step()
//		meter.Lap("optimizer")
//		if meter.Step(samples) { ... }
//	}
//
// This costs a step about a microsecond, and waits for nothing: the page lacks what golaunch does not take in time.
package progress

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
)

// Options configure a [Meter]. The zero value writes lines to stderr.
type Options struct {
	// Steps is the total number of steps, and First the number of steps already completed. With Steps 0 no remaining
	// time is shown.
	Steps, First int
	// Every is the number of steps between reports; default 10.
	Every int
	// Out receives the lines; default os.Stderr.
	Out io.Writer
	// File, if not empty, is the file to append to, or "tb:" and a folder: see the package comment.
	File string
	// Waited, if not nil, returns the total time for which the host has waited for reductions, as ddp.Model.Waited does. The
	// page then shows this time apart from that of the part in which the host waits.
	Waited func() time.Duration
	// PeakFLOPS, if not nil, returns the number of floating-point operations that the devices of all ranks can make in a second, or 0.
	// If the program counts those of all ranks by Count("flops", n), the lines also have "mfu", the part of the peak that is used
	// (model FLOPs utilization, https://arxiv.org/abs/2204.02311, appendix B). autograd.Operations counts those of a rank.
	PeakFLOPS func() float64
	// DeviceBytes, if not nil, returns the device memory of the process.
	DeviceBytes func() int64

	now func() time.Time // time.Now, except in tests
}

// A Value is a named number.
type Value struct {
	Name   string
	Number float64
}

// V returns a Value.
func V(name string, number float64) Value { return Value{name, number} }

// Process returns "heap_bytes", the Go heap in use at the last garbage collection, and "goroutines", the number of
// goroutines.
func Process() []Value {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/sched/goroutines:goroutines"}}
	metrics.Read(samples)
	return []Value{V("heap_bytes", float64(samples[0].Value.Uint64())), V("goroutines", float64(samples[1].Value.Uint64()))}
}

// A Meter reports on one run. Only one goroutine may use it.
type Meter struct {
	opts   Options
	writes bool  // whether this is rank 0
	bar    *bar  // nil: Out is not a terminal
	file   file  // nil: none
	err    error // the first error of writing it

	start   time.Time
	steps   int // completed steps
	logged  time.Time
	samples int     // samples since logged
	counts  []Value // what Count has counted since logged

	page   *telemetry.Reporter // nil: nobody looks at the job
	lap    time.Time           // the end of the last part
	waited time.Duration       // Waited at that time
	parts  []telemetry.Value   // the times of the step's parts so far, in seconds
}

// file is Options.File, in one of its formats.
type file interface {
	write(now time.Time, step int, values []Value) error
	Close() error
}

// New starts the report of a run. It returns an error if the file cannot be opened.
func New(rank int, opts *Options) (*Meter, error) {
	o := *cmp.Or(opts, &Options{})
	o.Every = cmp.Or(o.Every, 10)
	if o.Out == nil {
		o.Out = os.Stderr
	}
	if o.now == nil {
		o.now = time.Now
	}
	m := &Meter{opts: o, writes: rank == 0, steps: o.First, start: o.now()}
	m.logged, m.lap = m.start, m.start
	m.page = telemetry.Inherited()
	if m.opts.Waited != nil {
		m.waited = m.opts.Waited()
	}
	if !m.writes {
		return m, nil
	}
	m.bar = newBar(m.opts.Out, m.opts.First, m.start)
	var err error
	if dir, isFolder := strings.CutPrefix(o.File, TensorBoardPrefix); isFolder {
		m.file, err = newEventFile(dir, o.First, m.start)
	} else if o.File != "" {
		m.file, err = newJSONFile(o.File, o.First, m.start)
	}
	if err != nil {
		return nil, fmt.Errorf("progress: %w", err)
	}
	return m, nil
}

// Step counts a step over the given number of samples of all ranks. It reports whether to call Log, equally on all
// ranks.
func (m *Meter) Step(samples int) (due bool) {
	m.steps++
	m.samples += samples
	if m.bar != nil {
		m.bar.step(m.opts.now(), m.steps, m.opts.Steps)
	}
	if m.page != nil {
		m.Lap(telemetry.Other)
		m.page.Step(m.steps, m.parts)
		m.parts = m.parts[:0]
	}
	return m.steps%m.opts.Every == 0 || m.steps == m.opts.Steps
}

// Lap says that a part of the step has ended, which began at the previous call of Lap or Step. The page of golaunch shows
// its time. A step may have the same part several times. It may have at most 32 different ones.
func (m *Meter) Lap(part string) {
	if m.page == nil {
		return
	}
	now := m.opts.now()
	took := now.Sub(m.lap)
	m.lap = now
	if m.opts.Waited != nil {
		total := m.opts.Waited()
		waited := min(max(total-m.waited, 0), took)
		m.waited = total
		m.addPart(telemetry.Wait, waited)
		took -= waited
	}
	m.addPart(part, took)
}

// addPart adds time to a part of the step.
func (m *Meter) addPart(name string, took time.Duration) {
	for i := range m.parts {
		if m.parts[i].Name == name {
			m.parts[i].Number += took.Seconds()
			return
		}
	}
	m.parts = append(m.parts, telemetry.Value{Name: name, Number: took.Seconds()})
}

// Count counts n more of something that all ranks have done, such as "tokens". The next line has its rate since the previous
// one, as "tokens_per_second".
func (m *Meter) Count(name string, n float64) {
	for i := range m.counts {
		if m.counts[i].Name == name {
			m.counts[i].Number += n
			return
		}
	}
	m.counts = append(m.counts, V(name, n))
}

// rates returns the rates since the previous line.
func (m *Meter) rates(now time.Time) []Value {
	took := now.Sub(m.logged).Seconds()
	all := []Value{V("samples_per_second", float64(m.samples)/took)}
	for _, c := range m.counts {
		all = append(all, V(c.Name+"_per_second", c.Number/took))
		if c.Name == "flops" && m.opts.PeakFLOPS != nil {
			if peak := m.opts.PeakFLOPS(); peak > 0 {
				all = append(all, V("mfu", c.Number/took/peak))
			}
		}
	}
	return all
}

// Log writes a line about the steps since the previous line.
func (m *Meter) Log(values ...Value) {
	now := m.opts.now()
	if m.writes {
		values = slices.Concat(values, m.rates(now))
		m.show(now, values)
		m.forget(now)
	} else {
		values = nil
	}
	if m.file != nil || m.page != nil {
		m.keep(now, slices.Concat(values, m.held()))
	}
}

// held returns what the process holds.
func (m *Meter) held() []Value {
	held := Process()
	if m.opts.DeviceBytes != nil {
		held = append(held, V("device_bytes", float64(m.opts.DeviceBytes())))
	}
	return held
}

// Note writes a line that stays on the terminal, such as the result of an evaluation. The time since the previous
// line does not count as training.
func (m *Meter) Note(values ...Value) {
	if !m.writes {
		return
	}
	now, line := m.opts.now(), m.line(describe(values))
	if m.bar != nil {
		m.bar.note(now, m.steps, line)
	} else {
		fmt.Fprintln(m.opts.Out, line)
	}
	m.keep(now, values)
	m.page.Flush()
	m.forget(now)
}

// keep writes numbers to the file and reports them to the page. If the file cannot be written, keep logs a warning and writes
// no more to it: a training run must not fail because of its log.
func (m *Meter) keep(now time.Time, values []Value) {
	if m.file != nil && m.err == nil {
		if m.err = m.file.write(now, m.steps, values); m.err != nil {
			slog.Warn("progress: the file has no more lines", "cause", m.err)
		}
	}
	all := make([]telemetry.Value, len(values))
	for i, v := range values {
		all[i] = telemetry.Value(v)
	}
	m.page.Report(m.steps, all...)
}

// forget begins to count for the next line.
func (m *Meter) forget(now time.Time) {
	m.logged, m.samples = now, 0
	for i := range m.counts {
		m.counts[i].Number = 0
	}
}

// Close ends the line on the terminal and closes the file. It returns the first write error.
func (m *Meter) Close() error {
	m.page.Flush()
	if m.bar != nil {
		m.bar.end(m.steps, m.opts.Steps)
	}
	err := m.err
	if m.file != nil {
		err = errors.Join(err, m.file.Close())
	}
	m.file, m.err = nil, nil
	if err != nil {
		return fmt.Errorf("progress: %w", err)
	}
	return nil
}

// describe formats each value for people: NAME_bytes is in MiB, and NAME_per_second is a rate.
func describe(values []Value) (items []string) {
	for _, v := range values {
		name, isSize := strings.CutSuffix(v.Name, "_bytes")
		what, isRate := strings.CutSuffix(v.Name, "_per_second")
		switch {
		case isSize:
			items = append(items, fmt.Sprintf("%s %.4g MiB", name, v.Number/(1<<20)))
		case !isRate:
			items = append(items, fmt.Sprintf("%s %.4g", v.Name, v.Number))
		case what != "flops": // mfu says it better
			items = append(items, rate(v.Number, what))
		}
	}
	return items
}

// rate formats a rate.
func rate(perSecond float64, what string) string {
	if perSecond >= 100 && perSecond < 1e6 {
		return fmt.Sprintf("%.0f %s/s", perSecond, what)
	}
	return fmt.Sprintf("%.3g %s/s", perSecond, what)
}

// left formats the time that is left.
func left(d time.Duration) string { return fmt.Sprintf("%v left", d.Round(time.Second)) }

// line returns the position and the items as a line.
func (m *Meter) line(items []string) string {
	at := fmt.Sprintf("step %d", m.steps)
	if m.opts.Steps > 0 {
		at = fmt.Sprintf("step %d/%d", m.steps, m.opts.Steps)
	}
	return strings.Join(append([]string{at}, items...), "  ")
}

// show writes a line about the values, or draws them on the terminal.
func (m *Meter) show(now time.Time, values []Value) {
	items := describe(values)
	if m.bar != nil {
		m.bar.values = items
		m.bar.draw(now, m.steps, m.opts.Steps)
		return
	}
	if todo := m.opts.Steps - m.steps; todo > 0 && m.steps > m.opts.First {
		each := now.Sub(m.start) / time.Duration(m.steps-m.opts.First)
		items = append(items, left(each*time.Duration(todo)))
	}
	fmt.Fprintln(m.opts.Out, m.line(items))
}
