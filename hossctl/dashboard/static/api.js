// Questions to the dashboard, and who asks. The session is a cookie that no script can read; what acts also sends
// the session's CSRF token, which is kept in this page alone.

export const viewer = { login: false, actions: false, caller: "", role: "", tenant: "" };
let csrf = "";

export const unlocked = () => viewer.actions;
export const loggedIn = () => csrf !== "";

/** An answer's document; `{error}` where there is none. */
export async function ask(path, body) {
  try {
    const options = { headers: csrf ? { "X-CSRF-Token": csrf } : {} };
    if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    return await (await fetch(path, options)).json();
  } catch {
    return { error: "the dashboard does not answer" };
  }
}

/** Ask who this page's viewer is. Returns why that is not known, or "". */
export async function identify() {
  const said = await ask("/api/access");
  if (!said.error) {
    csrf = said.csrf;
    for (const name of Object.keys(viewer)) viewer[name] = said[name];
  }
  return said.error ?? "";
}

/** Exchange a token, or that of a link, for a session. Returns why that failed, or "". */
export async function logIn(token) {
  const said = await ask("/api/login", { token });
  return said.error ?? identify();
}

export async function logOut() {
  await ask("/api/logout", {});
  await identify();
}
