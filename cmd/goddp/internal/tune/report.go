package tune

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Report is a result and its configuration.
type Report struct {
	Collective string
	Ranks      int
	Backend    string
	Pairs      int
	Sizes      []int // in bytes
	*Result
}

// sizesWith returns the names of the sizes at which a comparison has a verdict: "64K, 4M".
func (r *Report) sizesWith(c Comparison, v Verdict) string {
	var sizes []string
	for i, q := range c.Ratios {
		if q.Verdict == v {
			sizes = append(sizes, formatSize(r.Sizes[i]))
		}
	}
	return strings.Join(sizes, ", ")
}

// ToSet returns the settings that are faster at some size and slower at none. For a group of one rank it returns
// none, because calls in such a group are only copies.
func (r *Report) ToSet() (settings []Comparison) {
	for _, c := range r.Comparisons {
		if r.Ranks == 1 {
			break
		}
		if r.sizesWith(c, Faster) != "" && r.sizesWith(c, Slower) == "" {
			settings = append(settings, c)
		}
	}
	return settings
}

// tooNoisy is the noise from which the report warns that small differences stay hidden.
const tooNoisy = 1.2

// mostNoise returns the largest factor between two runs of the default.
func (r *Report) mostNoise() float64 {
	most := 1.0
	for _, q := range r.Comparisons[0].Ratios {
		most = max(most, noise(q))
	}
	return most
}

// WriteText writes a table with a row for each setting and a column for each size, and what to set.
func (r *Report) WriteText(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "goddp tune %s: ranks: %d, backend: %s, pairs of runs: %d\n\n", r.Collective, r.Ranks, r.Backend, r.Pairs)
	width := len("default (us)")
	for _, c := range r.Comparisons {
		width = max(width, len(c.String()))
	}
	row := func(name string, cells []string) {
		fmt.Fprintf(&text, "%-*s", width, name)
		for _, cell := range cells {
			fmt.Fprintf(&text, "  %19s", cell)
		}
		text.WriteByte('\n')
	}
	var sizes, times []string
	for i, size := range r.Sizes {
		sizes = append(sizes, formatSize(size)+" ")
		times = append(times, fmt.Sprintf("%.1f ", r.Default[i]))
	}
	row("size (B)", sizes)
	row("default (us)", times)
	for _, c := range r.Comparisons {
		if c.Error != "" {
			fmt.Fprintf(&text, "%-*s  failed: %s\n", width, c, c.Error)
			continue
		}
		var cells []string
		for _, q := range c.Ratios {
			mark := map[Verdict]string{Faster: "+", Slower: "-", Same: " "}[q.Verdict]
			cells = append(cells, fmt.Sprintf("%.2f [%.2f, %.2f]%s", q.Median, q.Least, q.Most, mark))
		}
		row(c.String(), cells)
	}
	text.WriteString("\nA cell is the ratio of the setting's time to the default's: the median of the pairs, [least, most].\n" +
		"+ faster, - slower, in every pair by more than the default ever differs from itself, and by 5% at the median.\n\n")
	if most := r.mostNoise(); most > tooNoisy {
		fmt.Fprintf(&text, "The default's times differ from each other by a factor of up to %.1f: end other work on the hosts, or raise --pairs and --iters.\n", most)
	}
	for _, c := range r.Comparisons {
		if faster, slower := r.sizesWith(c, Faster), r.sizesWith(c, Slower); faster != "" && slower != "" {
			fmt.Fprintf(&text, "%v is faster at %s and slower at %s: leave the default, which chooses for each size.\n", c, faster, slower)
		}
	}
	set := r.ToSet()
	for _, c := range set {
		fmt.Fprintf(&text, "%v is faster at %s, and slower at no size. %s\n", c, r.sizesWith(c, Faster), c.Advice)
	}
	switch {
	case r.Ranks == 1:
		text.WriteString("Leave the defaults: the calls of one rank are copies, and show nothing of a job of several.\n")
	case len(set) == 0:
		text.WriteString("Leave the defaults: no setting is faster at some size and slower at none.\n")
	default:
		text.WriteString("Measure again on other hosts, and after an update of the library or the driver: the default adapts, a setting does not.\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// WriteJSON writes one object.
func (r *Report) WriteJSON(w io.Writer) error {
	type comparison struct {
		Setting []string `json:"setting"` // empty for the default compared with itself
		Ratios  []Ratio  `json:"ratios,omitempty"`
		Error   string   `json:"error,omitempty"`
	}
	object := struct {
		Collective  string       `json:"collective"`
		Ranks       int          `json:"ranks"`
		Backend     string       `json:"backend"`
		Pairs       int          `json:"pairs"`
		Sizes       []int        `json:"sizes"`
		Default     []float64    `json:"default_us"`
		Comparisons []comparison `json:"comparisons"`
		ToSet       [][]string   `json:"to_set"`
	}{r.Collective, r.Ranks, r.Backend, r.Pairs, r.Sizes, r.Default, nil, [][]string{}}
	for _, c := range r.Comparisons {
		object.Comparisons = append(object.Comparisons, comparison{append([]string{}, c.Variables...), c.Ratios, c.Error})
	}
	for _, s := range r.ToSet() {
		object.ToSet = append(object.ToSet, s.Variables)
	}
	return json.NewEncoder(w).Encode(object)
}

// formatSize formats a size in the notation of nccl-tests' flags, if it has a short one: "64K".
func formatSize(bytes int) string {
	for shift, unit := range []string{"G", "M", "K"} {
		if n := 30 - 10*shift; bytes >= 1<<n && bytes%(1<<n) == 0 {
			return fmt.Sprintf("%d%s", bytes>>n, unit)
		}
	}
	return fmt.Sprint(bytes)
}
