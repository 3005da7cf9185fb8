package tune

import (
	"fmt"
	"strings"

	"github.com/goddp/goddp/internal/jobenv"
)

// Setting is a set of variables to compare with the default.
type Setting struct {
	// Variables are the environment variables: "NCCL_PROTO=LL". The default has none.
	Variables []string
	// Advice says when the setting costs more than the measured calls show.
	Advice string
}

// String returns the variables, or the name of the default.
func (s Setting) String() string {
	if len(s.Variables) == 0 {
		return "default again"
	}
	return strings.Join(s.Variables, " ")
}

const (
	forcedAdvice = "It holds for every size and every group of the job."
	fewerAdvice  = "The call leaves more multiprocessors to a backward pass beside it, which counts more than the call's own time."
	moreAdvice   = "The call takes multiprocessors from a backward pass beside it: compare the time of whole steps."
	bufferAdvice = "NCCL allocates a buffer of this size for each channel, connection and protocol."
)

// NCCL returns the NCCL settings worth trying for a collective ("all_reduce"), and goddp's for GPUs. An algorithm
// or a protocol is forced only for that collective: a plain NCCL_ALGO=Tree makes NCCL fail in an all-gather, which
// has no tree algorithm.
func NCCL(collective string) []Setting {
	function := strings.ReplaceAll(collective, "_", "") // NCCL's name of it
	var settings []Setting
	if function == "allreduce" {
		settings = append(settings, Setting{Variables: []string{jobenv.NoSmallAllReduceVar + "=1"}, Advice: "NCCL then runs small all-reduces between GPUs that map each other's memory."},
			Setting{Variables: []string{"NCCL_ALGO=allreduce:ring"}, Advice: forcedAdvice},
			Setting{Variables: []string{"NCCL_ALGO=allreduce:tree"}, Advice: forcedAdvice})
	}
	if function != "alltoall" && function != "sendrecv" { // NCCL sends these between pairs of ranks
		for _, protocol := range []string{"simple", "ll128", "ll"} {
			settings = append(settings, Setting{Variables: []string{"NCCL_PROTO=" + function + ":" + protocol}, Advice: forcedAdvice})
		}
	}
	for _, s := range []struct{ variable, values, advice string }{
		{"NCCL_MAX_CTAS", "4 8", fewerAdvice},
		{"NCCL_MIN_CTAS", "32", moreAdvice},
		{"NCCL_BUFFSIZE", "1048576 8388608", bufferAdvice},
	} {
		for value := range strings.FieldsSeq(s.values) {
			settings = append(settings, Setting{Variables: []string{s.variable + "=" + value}, Advice: s.advice})
		}
	}
	return settings
}

// Parse parses a setting: "NCCL_ALGO=Ring,Tree NCCL_PROTO=LL". NCCL's lists have commas, so spaces separate the variables.
func Parse(text string) (Setting, error) {
	s := Setting{Variables: strings.Fields(text)}
	if len(s.Variables) == 0 {
		return Setting{}, fmt.Errorf("the setting %q is empty: want NAME=VALUE", text)
	}
	for _, v := range s.Variables {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return Setting{}, fmt.Errorf("%q in the setting %q: want NAME=VALUE", v, text)
		}
	}
	return s, nil
}
