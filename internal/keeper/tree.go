package keeper

import "maps"

// kin is what earlier looks at a tree have found, by number, with when each
// began. Who has lost the parent that tied it to the tree is still known by it.
type kin map[int]uint64

// roots say what belongs to the tree of a main process.
type roots struct {
	pid    int             // the main process; -1 when its number is another's by now
	files  map[fileID]bool // its output pipes or terminal
	known  kin
	others map[int]bool // main processes beside it: what is in their sessions is theirs
	self   int          // the keeper
}

// treeOf picks from all what belongs to a main process and lives: its group, its
// session, whoever holds one of its files, what was known before with the
// sessions that it has opened, and all descendants of these.
func treeOf(all []task, r roots) []task {
	at := make(map[int]task, len(all))
	for _, t := range all {
		at[t.pid] = t
	}
	in := make(map[int]bool)
	for _, t := range all {
		if t.pid != r.self && t.pid != 1 && r.own(t, at) {
			in[t.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if !in[t.pid] && in[t.parent] {
				in[t.pid], grown = true, true
			}
		}
	}
	var tree []task
	for _, t := range all {
		if in[t.pid] && !t.dead() {
			tree = append(tree, t)
		}
	}
	return tree
}

// own reports whether t belongs to the tree whoever its parent is.
func (r roots) own(t task, at map[int]task) bool {
	if t.pid == r.pid || t.group == r.pid || t.session == r.pid {
		return true
	}
	if r.others[t.session] {
		return false // it may hold our files: somebody has given them to it
	}
	if since, ok := r.known[t.pid]; ok && since == t.since {
		return true
	}
	if since, ok := r.known[t.session]; ok {
		// The number of a session is not given away while it has members.
		leader, lives := at[t.session]
		if !lives || leader.since == since {
			return true
		}
	}
	return len(r.files) > 0 && holds(t.pid, r.files)
}

// learn adds a tree to what is known, and drops what nobody can be found by.
func (k kin) learn(all, tree []task) {
	alive := make(map[int]bool, 2*len(all))
	for _, t := range all {
		alive[t.pid], alive[t.session] = true, true
	}
	maps.DeleteFunc(k, func(pid int, _ uint64) bool { return !alive[pid] })
	for _, t := range tree {
		k[t.pid] = t.since
	}
}
