// Package vocabulary lists words that no identifier of this module may contain, because an engineer of
// this field would have to learn their meaning here. Each entry of the lists says what to write instead.
// The package's test reads every identifier that the tree declares, and every file name.
package vocabulary

// phrases are words, or sequences of words, that no identifier contains. The words of oneShotSum are one,
// shot and sum.
var phrases = map[string]string{
	"lags":     "straggler",
	"echo":     "cause, causedBy",
	"foreign":  "otherGroup, otherVersion: what is different",
	"heard":    "reported",
	"numbered": "reported",
	"card":     "callHeader",
	"desk":     "shmRegion",
	"board":    "shmGroup",
	"gate":     "barrier",
	"room":     "inprocGroup",
	"seat":     "member",
	"parcel":   "message",
	"meeting":  "bootstrap",
	"refusal":  "joinFailure",
	"arrival":  "join",
	"wire":     "algorithm (ring, tree), or the format's name",
	"link":     "peerConn",
	"ledger":   "callState",
	"lane":     "commStream",
	"one shot": "smallAllReduce",
	"bury":     "deferFree",
	"parting":  "leave",
	"farewell": "leaveMsg",
	"let go":   "release",
	"excuse":   "shadow flag",
	"spare":    "unused",
	"vanish":   "noLongerUsed",
	"spoilt":   "invalid",
	"lend":     "SwapParameters",
	"torn":     "inconsistent",
	"begun":    "started",
	"relay":    "two-phase reduction",
	"leg":      "phase",
	"shepherd": "reaper",
	"strays":   "orphans",
	"sweep":    "killOrphans",
	"remains":  "survivors",
	"keptport": "testport",
	"standin":  "fakegpu",
	"hostmem":  "memcheck",
	"told":     "notified",
	"gives up": "times out, aborts",
	"rubbish":  "garbage",
}

// names are words that say too little to be a whole identifier. They may be parts of longer ones.
var names = map[string]string{
	"checked":   "validated",
	"among":     "group",
	"own":       "self, mine: whose",
	"word":      "leaveMsg",
	"together":  "allLeave",
	"apart":     "disagree",
	"stays":     "remaining",
	"lack":      "missing",
	"appear":    "newlyUsed",
	"Lend":      "SwapParameters",
	"Tail":      "StepHook",
	"Restoring": "BeginLoad",
	"Restored":  "EndLoad",
	"Together":  "Lockstep",
	"or":        "a full verb",
	"within":    "a full verb",
	"over":      "a full verb",
	"came":      "joined",
	"looks":     "polls",
}

// instead returns what to write instead of an entry.
func instead(entry string) string {
	if s, ok := phrases[entry]; ok {
		return s
	}
	return names[entry]
}
