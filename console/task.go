package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
)

var taskPages = []route{
	{"GET tasks", "tasks", (*page).tasks},
	{"GET tasks/{id}", "tasks", (*page).task},
	{"GET tasks/{id}/{do}", "tasks", (*page).changeTask},
	{"POST tasks/{id}/{do}", "tasks", (*page).changeTask},
}

const tasksPerPage = 50

// tasks lists the tasks, the newest first.
func (p *page) tasks() error {
	list, err := p.api.TaskPage(p.ctx, p.Param("status"), p.Param("after"), tasksPerPage, p.now())
	if err != nil {
		return err
	}
	return p.show("tasks", "Tasks", tasksData{list.Tasks, p.pager(list.NextCursor)})
}

type tasksData struct {
	Tasks []wire.Task
	Pager pager
}

// stopPolling is the status at which htmx no longer asks for a part.
const stopPolling = 286

// task shows one task and its progress.
func (p *page) task() error {
	t, err := p.api.Task(p.ctx, p.r.PathValue("id"), p.now())
	if err != nil {
		return err
	}
	status := 200
	if p.fragment() && t.Status != wire.TaskRunning {
		status = stopPolling
	}
	return p.render(status, "task", taskTitle(t), t)
}

// taskTitle names a task: "Replay in jobs".
func taskTitle(t *wire.Task) string {
	title := strings.ToUpper(t.Type[:1]) + t.Type[1:]
	if t.Queue != "" {
		title += " in " + t.Queue
	}
	return title
}

// took is how long a task has run, or did.
func took(t *wire.Task) string {
	end := time.Now()
	if t.EndedAt != 0 {
		end = t.EndedAt.Time()
	}
	return span(end.Sub(t.CreatedAt.Time()))
}

// skipReasons lists why an undo skipped messages, the most first.
func skipReasons(counts map[string]int64) []string {
	all := skippedOf(counts)
	slices.SortStableFunc(all, func(a, b skipped) int { return cmp.Compare(b.Count, a.Count) })
	var out []string
	for _, of := range all {
		out = append(out, humanize.Comma(of.Count)+" "+strings.ReplaceAll(of.Code, "_", " "))
	}
	return out
}

// changeTask cancels a task, or continues a cancelled one.
func (p *page) changeTask() error {
	id, do := p.r.PathValue("id"), p.r.PathValue("do")
	if do != "cancel" && do != "resume" {
		return &failure{404, "There is no such page", p.r.URL.Path}
	}
	t, err := p.api.Task(p.ctx, id, p.now())
	if err != nil {
		return err
	}
	what, so := taskTitle(t), fmt.Sprintf("%s of about %s", humanize.Comma(t.Done), humanize.Comma(t.Total))
	f := &confirm{Action: p.LinkNow("tasks", id, do), Back: p.LinkNow("tasks", id)}
	if do == "cancel" {
		f.Title, f.Submit, f.Danger = "Cancel: "+what, "Cancel the task", true
		f.Text = "It has done " + so + ". What it has done stays done; it can be resumed later."
		f.As = p.as("DELETE", "/v1/tasks/"+id, "", "task", "cancel", id, "--yes")
	} else {
		f.Title, f.Submit = "Resume: "+what, "Resume the task"
		f.Text = "It has done " + so + ", and continues with the rest."
		f.As = p.as("POST", "/v1/tasks/"+id+"/resume", "", "task", "resume", id)
	}
	return p.confirmed(f, func() (err error) {
		said := "Cancelled: "
		if do == "cancel" {
			err = p.api.CancelTask(p.ctx, id)
		} else {
			said = "Resumed: "
			_, err = p.api.ResumeTask(p.ctx, id)
		}
		if err != nil {
			return err
		}
		return p.done(said+what+".", "tasks", id)
	})
}
