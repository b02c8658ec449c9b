package console

import (
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
)

var taskPages = []route{
	{"GET tasks", "tasks", (*page).tasks},
	{"GET tasks/{id}", "tasks", (*page).task},
	{"POST tasks/{id}/{do}", "tasks", (*page).changeTask},
}

const tasksPerPage = 50

// tasks lists the tasks, the newest first.
func (p *page) tasks() error {
	list, err := p.api.TaskPage(p.ctx, p.Param("status"), p.Param("after"), tasksPerPage, p.now())
	if err != nil {
		return err
	}
	return p.show("tasks", "Tasks", listed[wire.Task]{list.Tasks, p.pager(list.NextCursor)})
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
	if t.Queue == "" {
		return capital(t.Type)
	}
	return capital(t.Type) + " in " + t.Queue
}

// took is how long a task has run, or did.
func took(t *wire.Task) string {
	end := time.Now()
	if t.EndedAt != 0 {
		end = t.EndedAt.Time()
	}
	return span(end.Sub(t.CreatedAt.Time()))
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
	f := p.newForm(capital(do)+": "+taskTitle(t), capital(do)+" the task", p.LinkNow("tasks", id))
	f.Text = "It has done " + humanize.Comma(t.Done) + " of about " + humanize.Comma(t.Total)
	method, path, said := "POST", v1("tasks", id, "resume"), "Resumed: "
	if f.Danger = do == "cancel"; f.Danger {
		method, path, said = "DELETE", v1("tasks", id), "Cancelled: "
		f.Text += ". What it has done stays done; it can be resumed later."
	} else {
		f.Text += ", and continues with the rest."
	}
	f.As = p.as(method, path, nil, []string{"task", do, id, "--yes"})
	return p.send(f, func() (err error) {
		if do == "cancel" {
			err = p.api.CancelTask(p.ctx, id, p.once())
		} else {
			_, err = p.api.ResumeTask(p.ctx, id, p.once())
		}
		return p.done(err, said+taskTitle(t)+".", "tasks", id)
	})
}
