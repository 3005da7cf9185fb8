package host

// What a test needs that opens connections as a rank does.

const Accepted = accepted

var GroupKey = groupKey
