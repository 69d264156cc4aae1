// Questions to the dispatcher, and what a token allows. The token is kept in this page alone and is gone with it.

let token = "";

export const unlocked = () => token !== "";

/** An answer's document; `{error}` where there is none. */
export async function ask(path, body) {
  try {
    const options = { headers: token ? { Authorization: `Bearer ${token}` } : {} };
    if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    return await (await fetch(path, options)).json();
  } catch {
    return { error: "the dispatcher does not answer" };
  }
}

/** Keep a token if it is the right one. Returns why it is not, or "". */
export async function unlock(given) {
  token = given;
  const said = await ask("/api/access");
  if (said.error) token = "";
  return said.error ?? "";
}

export function lock() {
  token = "";
}
