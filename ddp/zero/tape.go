package zero

// tape is the order in which the operations of a step use the buckets, as the first step that ended without an error
// has recorded it, and when to gather them. It is the same on all ranks.
type tape []moment

// moment is when an operation uses another bucket than the one used before.
type moment struct {
	bucket  int
	op      uint64 // the number of the operation
	last    uint64 // the number of the last operation that used the bucket before the next moment
	gathers []int  // the buckets whose gathers start before the moment's operation is enqueued, in order
}

// lookahead is how many moments before its use a bucket's gather starts, if its slot is free by then.
const lookahead = 2

// plan sets the gathers of all moments. slotOf returns the slot of a bucket. At the first moment no slot holds
// parameters. A gather starts when all operations that use the slot's previous parameters are enqueued.
func (t tape) plan(slotOf func(bucket int) int) {
	holds, last := map[int]int{}, map[int]int{} // by slot: the bucket that it holds, and the last moment that used it
	issued := 0                                 // the moment of the last gather: gathers keep the order of their uses
	for i, m := range t {
		slot := slotOf(m.bucket)
		holder, isHeld := holds[slot]
		if !isHeld || holder != m.bucket {
			at := max(issued, i-lookahead)
			free := func(at int) bool {
				isFirst := at == 0 || t[at].op != t[at-1].op // of its operation
				return isFirst && (!isHeld || at > last[slot] && t[at].op != t[last[slot]].last)
			}
			for at < i && !free(at) {
				at++
			}
			t[at].gathers = append(t[at].gathers, m.bucket)
			issued, holds[slot] = at, m.bucket
		}
		last[slot] = i
	}
}

// next returns the index of the first moment, from index i on, whose operation uses the bucket, or -1 if there is none.
func (t tape) next(i, bucket int) int {
	for ; i < len(t); i++ {
		if t[i].bucket == bucket {
			return i
		}
	}
	return -1
}
